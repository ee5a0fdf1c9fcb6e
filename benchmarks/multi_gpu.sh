#!/usr/bin/env bash
# Native against Lightning on several GPUs of one host, under torchrun and NCCL: every cell with its parity, times and memory,
# weak and strong scaling, and what each choice of Lightning's costs. Call it for each number of ranks:
#
#     RANKS=2 bash benchmarks/multi_gpu.sh results/multi-gpu               # what fits into 9 minutes; again, for what is left
#     RANKS=2 bash benchmarks/multi_gpu.sh results/multi-gpu medium-bf16 strong
#     bash benchmarks/multi_gpu.sh --dry-run results/multi-gpu             # print the commands, run nothing
#
# part               runs   what: ddp, fsdp2 block and fsdp2 root, native and Lightning in turn, three runs of each
# small-, medium-      18   one preset in one precision; each rank's batch stays, so that several RANKS are weak scaling
# strong               18   medium in bf16; the global batch stays (on one rank that is medium-bf16)
# attribute-fsdp2      12   medium in bf16, fsdp2 block, with each side's switches: zeroing, Lightning's broadcast
# attribute-ddp        15   the same with ddp, and autocast's cache
#
# Without a part, all run, those that say most first. Nothing is started that would not end within LIMIT_SECONDS at the pace of the
# slowest runs so far; a cell that has its folder is left as it is, so that another call goes on. Runs on one H200 took 15 to 26 s,
# most of it imports and set-up: at that, a part is 3 to 8 minutes and the seven (117 runs) are 29 to 51, four to six calls;
# with REPEATS=1 one or two. With several GPUs it has not been timed.
#
# A call ends with the tables of its parts, and with the scaling, once the folder has several numbers of ranks. Results lie in
# FOLDER/PART/N-ranks/CELL. Exits with 1 if a run failed or runs were not comparable (the other cells still run), else with 75
# if time was up before all had run.
#
# Variables, with their defaults; the second group is for a test on CPU ranks, such as
#     DEVICE=cpu PRESET=tiny BATCH=1 GLOBAL_BATCH=2 WARMUP_STEPS=2 STEPS=2 REPEATS=1 RANKS=2 bash benchmarks/multi_gpu.sh ...
#
# RANKS=2  REPEATS=3  CELLS="ddp fsdp2-block fsdp2-root"  LIMIT_SECONDS=500  PYTHON=python3, with this project's dependencies
# OMP_NUM_THREADS=8
# DEVICE=cuda  PRESET=the part's  BATCH=64 in bf16, 8 in fp32  GLOBAL_BATCH=64  WARMUP_STEPS=5  STEPS=15
set -euo pipefail

dry_run=""
if [[ ${1:-} == --dry-run ]]; then
    dry_run=yes
    shift
fi
ranks=${RANKS:-2}
known=(medium-bf16 strong attribute-fsdp2 small-fp32 small-bf16 medium-fp32 attribute-ddp)
folder=${1:?name a folder for the results, then no part, or some of ${known[*]}}
parts=("${@:2}")
if [[ ${#parts[@]} -eq 0 ]]; then
    parts=("${known[@]}")
    if [[ $ranks == 1 ]]; then parts=("${known[0]}" "${known[@]:2}"); fi # strong scaling on one rank is medium-bf16
fi
for part in "${parts[@]}"; do
    if [[ " ${known[*]} " != *" $part "* ]]; then
        echo "$part is no part; parts: ${known[*]}" >&2
        exit 2
    fi
done
cells=${CELLS:-ddp fsdp2-block fsdp2-root}
repeats=${REPEATS:-3}
failed=0
left=0
pace="" # seconds that a run of the slowest cell took so far; until then, what one took at most on one H200
# The same threads at every number of ranks: fewer for more ranks would be no scaling.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
[[ $folder == /* ]] || folder=$PWD/$folder
[[ $dry_run ]] || mkdir -p "$folder"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

compare() {
    if [[ $dry_run ]]; then
        echo "compare.py $*"
    else
        "${PYTHON:-python3}" compare.py "$@" || failed=1
    fi
}

# run_cells PART RUNS-A-REPEAT PRESET PRECISION CELLS OPTION...
run_cells() {
    local part=$1 runs=$(($2 * repeats)) preset=${PRESET:-$3} precision=$4 cell since took
    local -a options=("${@:6}")
    for cell in $5; do
        local results=$folder/$part/$ranks-ranks/$cell
        if [[ -e $results && ! $dry_run ]]; then
            echo "$part $cell, $ranks ranks: it has its folder already; remove that to run it again"
            continue
        elif [[ ! $dry_run ]] && ((SECONDS + runs * ${pace:-26} > ${LIMIT_SECONDS:-500})); then
            echo "$part $cell, $ranks ranks: no time, left for another call"
            left=$((left + 1))
            continue
        fi
        local -a strategy=(--strategy "${cell%-*}")
        [[ $cell == ddp ]] || strategy+=(--fsdp-wrap "${cell#*-}")
        since=$SECONDS
        compare run "${strategy[@]}" --preset "$preset" --precision "$precision" "${options[@]}" \
            --device "${DEVICE:-cuda}" --launcher torchrun --nproc-per-node "$ranks" --repeats "$repeats" \
            --warmup-steps "${WARMUP_STEPS:-5}" --steps "${STEPS:-15}" --no-responsibilities \
            --output-dir "$results"
        took=$(((SECONDS - since) / runs + 1))
        if ((took > ${pace:-0})); then pace=$took; fi
    done
}

for part in "${parts[@]}"; do
    case $part in
        small-bf16 | medium-bf16)
            run_cells "$part" 2 "${part%-*}" bf16 "$cells" --batch-size-per-device "${BATCH:-64}"
            ;;
        small-fp32 | medium-fp32)
            run_cells "$part" 2 "${part%-*}" fp32 "$cells" --batch-size-per-device "${BATCH:-8}"
            ;;
        strong)
            run_cells strong 2 medium bf16 "$cells" --global-batch-size "${GLOBAL_BATCH:-64}"
            ;;
        attribute-ddp)
            run_cells "$part" 5 medium bf16 ddp --attribute --batch-size-per-device "${BATCH:-64}"
            ;;
        attribute-fsdp2)
            run_cells "$part" 4 medium bf16 fsdp2-block --attribute --batch-size-per-device "${BATCH:-64}"
            ;;
    esac
done

# What the parts measured, all cells in one table; and over numbers of ranks, once there are several.
for part in "${parts[@]}"; do
    if [[ $dry_run || -e $folder/$part/$ranks-ranks ]]; then
        compare show "$folder/$part/$ranks-ranks" --no-responsibilities
    fi
done
if [[ $dry_run || $(find "$folder" -name '*-ranks' -printf '%f\n' | sort -u | wc -l) -gt 1 ]]; then
    compare show "$folder" --scaling
fi
if ((left)); then
    echo "$left cells with $ranks ranks are left: call this again with the same words" >&2
    ((failed)) || exit 75
fi
exit "$failed"
