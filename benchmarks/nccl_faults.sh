#!/usr/bin/env bash
# Rank 1 is killed, and rank 1 runs out of memory, in the middle of training under NCCL: within 30 s every process must have
# ended, with a failure, and a loss of memory must have left its result. About three minutes on GPUs, by estimate.
#
#     RANKS=2 bash benchmarks/nccl_faults.sh results/nccl-faults
#     DEVICE=cpu PRESET=tiny HALVES=native bash benchmarks/nccl_faults.sh results/gloo-faults    # a test without GPUs
#
# The memory is not really exhausted: rank 1 raises CUDA's error (tests/inject.py), since a real one hits all ranks at once.
# Exits with 1 if anything is not so. PYTHON names the interpreter (default python3); OMP_NUM_THREADS is left as it is.
set -euo pipefail
folder=${1:?name a new folder for results and logs}
limit=30
failed=0
if [[ -e $folder ]]; then
    echo "$folder exists; name a new folder" >&2
    exit 2
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# start NAME WRAPPER HALF: torchrun in the background, its process id in $torchrun
start() {
    "${PYTHON:-python3}" -m torch.distributed.run --standalone --nproc-per-node "${RANKS:-2}" -m "$2" "$3" \
        --device "${DEVICE:-cuda}" --preset "${PRESET:-small}" --strategy ddp --warmup-steps 5 --steps 1000000 \
        --output "$folder/$1.json" >"$folder/$1.log" 2>&1 &
    torchrun=$!
}

# wait_for FILE: until it is there, or torchrun is not
wait_for() {
    while [[ ! -e $1 ]] && kill -0 "$torchrun" 2>/dev/null; do sleep 0.1; done
}

# judge NAME: wait for the end, and say how and when everything ended
judge() {
    local since=$SECONDS code=0 process
    local -a survivors=()
    while kill -0 "$torchrun" 2>/dev/null && ((SECONDS - since <= limit)); do sleep 0.1; done
    for process in "$torchrun" $workers; do
        if kill -0 "$process" 2>/dev/null; then survivors+=("$process"); fi
    done
    if ((${#survivors[@]})); then
        echo "$1: FAILED: after $((SECONDS - since)) s these processes were still there: ${survivors[*]}"
        kill -9 "${survivors[@]}"
        failed=1
    fi
    wait "$torchrun" || code=$?
    echo "$1: ended within $((SECONDS - since + 1)) s, exit code $code"
    if [[ $code == 0 ]]; then
        echo "$1: FAILED: exit code 0"
        failed=1
    fi
}

for half in ${HALVES:-native lightning_impl}; do
    export ANNOUNCE=$folder/$half-killed.training
    start "$half-killed" tests.announce_training "$half"
    wait_for "$ANNOUNCE.rank1"
    workers=$(pgrep -P "$torchrun" || true)
    for process in $workers; do
        if tr '\0' '\n' <"/proc/$process/environ" | grep -qx RANK=1; then kill -9 "$process"; fi
    done
    judge "$half-killed"

    export INJECT='{"what": "out of memory", "at": 8, "ranks": [1], "seconds": 0}' INJECTED=$folder/$half-memory.injected
    start "$half-memory" tests.inject "$half"
    wait_for "$INJECTED.rank1"
    workers=$(pgrep -P "$torchrun" || true)
    judge "$half-memory"
    if ! grep -q '"out_of_memory"' "$folder/$half-memory.json"; then
        echo "$half-memory: FAILED: no result says out_of_memory"
        failed=1
    fi
done
exit "$failed"
