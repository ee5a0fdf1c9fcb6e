#!/usr/bin/env bash
# Faults under NCCL in the middle of training, each in native and Lightning, ddp and fsdp2: rank 1 is killed, raises an exception,
# raises CUDA's out-of-memory error; all ranks run out of memory. Within 30 s every process must have ended, with a failure that one
# line names, and a loss of memory must have left its result. No other fault may leave one.
#
#     RANKS=2 bash benchmarks/nccl_faults.sh results/nccl-faults
#     OWN_NODE=1 bash benchmarks/nccl_faults.sh results/nccl-faults       # all ranks on one GPU, see own_node.py
#     DEVICE=cpu PRESET=tiny HALVES=native STRATEGIES=ddp FAULTS="SIGKILL raise" bash benchmarks/nccl_faults.sh results/gloo-faults
#
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

# start HALF STRATEGY FAULT FILE BATCH: torchrun in the background, its process id in $torchrun
start() {
    INJECT="{\"what\": \"$3\", \"at\": 8, \"ranks\": [1], \"seconds\": 0}" INJECTED=$4 \
        "${PYTHON:-python3}" -m torch.distributed.run --standalone --nproc-per-node "${RANKS:-2}" \
        -m ${OWN_NODE:+benchmarks.own_node} tests.inject "$1" \
        --device "${DEVICE:-cuda}" --preset "${PRESET:-small}" --strategy "$2" --batch-size-per-device "$5" \
        --warmup-steps 5 --steps 1000000 --output "$4.json" >"$4.log" 2>&1 &
    torchrun=$!
}

# happened FILE
happened() {
    [[ -e $1.rank1 ]] || grep -q 'out_of_memory in ' "$1.log"
}

# fail WHAT
fail() {
    echo "    FAILED: $*"
    failed=1
}

# judge FILE EXPECTED: wait for the end; say when and how everything ended, in the words of a line that has EXPECTED
judge() {
    local since=$SECONDS file=$1 expected=$2 code=0 process
    local -a survivors=()
    while kill -0 "$torchrun" 2>/dev/null && ((SECONDS - since <= limit)); do sleep 0.1; done
    for process in "$torchrun" $workers; do
        if kill -0 "$process" 2>/dev/null; then survivors+=("$process"); fi
    done
    if ((${#survivors[@]})); then
        fail "after $((SECONDS - since)) s these processes were still there: ${survivors[*]}"
        kill -9 "${survivors[@]}"
    fi
    wait "$torchrun" || code=$?
    echo "    ended within $((SECONDS - since + 1)) s, exit code $code"
    if [[ $code == 0 ]]; then fail "exit code 0"; fi
    grep -m 1 -E "$expected" "$file.log" | sed 's/^/    /' || fail "no line of $file.log has: $expected"
}

for fault in ${FAULTS:-SIGKILL raise "out-of-memory" exhausted}; do
    for half in ${HALVES:-native lightning_impl}; do
        for strategy in ${STRATEGIES:-ddp fsdp2}; do
            file=$folder/$half-$strategy-$fault batch=1
            echo "$fault, $half $strategy"
            case $fault in
                SIGKILL) expected='^python -m .*error: .*(lost another rank|told to end by SIGTERM)' ;;
                raise) expected='^python -m .*error: rank 1 of .* failed with ValueError' ;;
                *) expected='out_of_memory in ' ;;
            esac
            if [[ $fault == exhausted ]]; then batch=${TOO_MUCH:-65536}; fi
            start "$half" "$strategy" "${fault//-/ }" "$file" "$batch"
            # An injected fault leaves a mark when it happens; of a real one only the message at the end is seen.
            deadline=$((SECONDS + 240))
            until happened "$file" || ! kill -0 "$torchrun" 2>/dev/null || ((SECONDS > deadline)); do sleep 0.1; done
            workers=$(pgrep -P "$torchrun" || true)
            judge "$file" "$expected"
            if [[ $expected == out_of_memory* ]]; then
                grep -q '"out_of_memory"' "$file.json" || fail "no result says out_of_memory"
            elif [[ -e $file.json ]]; then
                fail "there is a result"
            fi
        done
    done
done
exit "$failed"
