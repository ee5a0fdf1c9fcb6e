#!/usr/bin/env bash
# Native against Lightning on several GPUs of one host, under torchrun and NCCL: every cell with its parity, times and memory,
# weak and strong scaling, and what each choice of Lightning's costs. Call it once for each number of ranks and part:
#
#     for part in small-bf16 small-fp32 medium-bf16 medium-fp32 strong attribute-ddp attribute-fsdp2; do
#         RANKS=2 bash benchmarks/multi_gpu.sh results/multi-gpu $part
#     done
#     bash benchmarks/multi_gpu.sh --dry-run results/multi-gpu medium-bf16 strong    # print the commands, run nothing
#
# part               runs   what: ddp, fsdp2 block and fsdp2 root, native and Lightning in turn, three runs of each
# small-, medium-      18   one preset in one precision; each rank's batch stays, so that several RANKS are weak scaling
# strong               18   medium in bf16; the global batch stays (on one rank that is medium-bf16)
# attribute-ddp        15   medium in bf16 with each side's switches: zeroing, autocast's cache, Lightning's broadcast
# attribute-fsdp2      12   the same with fsdp2 block, which has no autocast
#
# Runs on one H200 took 15 to 26 s, most of it imports and set-up. At that, 18 runs are 4.5 to 8 minutes, so that a call with one part
# stays below 9, and the seven parts (117 runs) are 29 to 51 minutes for each number of ranks; REPEATS=1 takes a third. With several
# GPUs it has not been timed.
#
# A part ends with its tables, and from the second number of ranks on with the scaling over all that lies in the folder. Results lie
# in FOLDER/PART/N-ranks/CELL. Exits with 1 if a run failed or runs were not comparable; the other cells still run.
#
# Variables, with their defaults; the second group is for a test on CPU ranks, such as
#     DEVICE=cpu PRESET=tiny BATCH=1 GLOBAL_BATCH=2 WARMUP_STEPS=2 STEPS=2 REPEATS=1 RANKS=2 bash benchmarks/multi_gpu.sh ...
#
# RANKS=2  REPEATS=3  CELLS="ddp fsdp2-block fsdp2-root"  PYTHON=python3, which must have this project's dependencies
# OMP_NUM_THREADS=8
# DEVICE=cuda  PRESET=the part's  BATCH=64 in bf16, 8 in fp32  GLOBAL_BATCH=64  WARMUP_STEPS=5  STEPS=15
set -euo pipefail

dry_run=""
if [[ ${1:-} == --dry-run ]]; then
    dry_run=yes
    shift
fi
known="small-bf16 small-fp32 medium-bf16 medium-fp32 strong attribute-ddp attribute-fsdp2"
folder=${1:?name a folder for the results, then one part or several of $known}
parts=("${@:2}")
if [[ ${#parts[@]} -eq 0 ]]; then
    echo "name one part or several of $known" >&2
    exit 2
fi
for part in "${parts[@]}"; do
    if [[ " $known " != *" $part "* ]]; then
        echo "$part is no part; parts: $known" >&2
        exit 2
    fi
done
ranks=${RANKS:-2}
cells=${CELLS:-ddp fsdp2-block fsdp2-root}
failed=0
# The same threads at every number of ranks: fewer for more ranks would be no scaling.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
[[ $folder == /* ]] || folder=$PWD/$folder
cd "$(dirname "${BASH_SOURCE[0]}")/.."

compare() {
    if [[ $dry_run ]]; then
        echo "compare.py $*"
    else
        "${PYTHON:-python3}" compare.py "$@" || failed=1
    fi
}

# run_cells PART PRESET PRECISION CELLS OPTION...
run_cells() {
    local part=$1 preset=${PRESET:-$2} precision=$3 cell
    local -a options=("${@:5}")
    for cell in $4; do
        local -a strategy=(--strategy "${cell%-*}")
        [[ $cell == ddp ]] || strategy+=(--fsdp-wrap "${cell#*-}")
        compare run "${strategy[@]}" --preset "$preset" --precision "$precision" "${options[@]}" \
            --device "${DEVICE:-cuda}" --launcher torchrun --nproc-per-node "$ranks" --repeats "${REPEATS:-3}" \
            --warmup-steps "${WARMUP_STEPS:-5}" --steps "${STEPS:-15}" --no-responsibilities \
            --output-dir "$folder/$part/$ranks-ranks/$cell"
    done
}

for part in "${parts[@]}"; do
    case $part in
        small-bf16 | medium-bf16)
            run_cells "$part" "${part%-*}" bf16 "$cells" --batch-size-per-device "${BATCH:-64}"
            ;;
        small-fp32 | medium-fp32)
            run_cells "$part" "${part%-*}" fp32 "$cells" --batch-size-per-device "${BATCH:-8}"
            ;;
        strong)
            run_cells strong medium bf16 "$cells" --global-batch-size "${GLOBAL_BATCH:-64}"
            ;;
        attribute-ddp)
            run_cells "$part" medium bf16 ddp --attribute --batch-size-per-device "${BATCH:-64}"
            ;;
        attribute-fsdp2)
            run_cells "$part" medium bf16 fsdp2-block --attribute --batch-size-per-device "${BATCH:-64}"
            ;;
    esac
done

# What the parts measured, all cells in one table; and over numbers of ranks, once there are several.
for part in "${parts[@]}"; do
    compare show "$folder/$part/$ranks-ranks" --no-responsibilities
done
if [[ $dry_run || $(find "$folder" -name '*-ranks' -printf '%f\n' | sort -u | wc -l) -gt 1 ]]; then
    compare show "$folder" --scaling
fi
exit "$failed"
