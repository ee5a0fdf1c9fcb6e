#!/usr/bin/env bash
# Which of Lightning's choices explain its peak memory, on a machine with one GPU: medium in bf16, ddp and fsdp2, native
# and Lightning by default and with their switches. Under six minutes on an H200.
#
#     bash benchmarks/attribution.sh results/attribution
#     RANKS=2 REPEATS=3 bash benchmarks/attribution.sh results/attribution-2    # with intervals for times, and a broadcast
#
# Exits with 1 if a run failed, a variant computed anything else, or native that zeroes its gradients after the forward does not
# peak within 1 % of Lightning. Batch 64: at batch 1 the peak is the optimizer's and the order of zeroing does not show.
# PYTHON names the interpreter (default python3); it must have this project's dependencies.
set -euo pipefail
folder=${1:?name a new folder for the results}
python=${PYTHON:-python3}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

"$python" compare.py run --attribute --device cuda --nproc-per-node "${RANKS:-1}" --repeats "${REPEATS:-1}" \
    --preset medium --precision bf16 --batch-size-per-device 64 --no-responsibilities --output-dir "$folder"

"$python" compare.py show "$folder" --format json --no-responsibilities | "$python" -c '
import json, sys

attributions = json.load(sys.stdin)["attribution"]
failed = {each["workload"]["strategy"] for each in attributions} != {"ddp", "fsdp2"}
print()
for each in attributions:
    peaks = next(metric for metric in each["metrics"] if metric["metric"] == "peak_allocated_gib")
    after = next(one for one in peaks["variants"] if one["variant"] == "zero-grad after-forward")["cost"]["other"]
    native, lightning = peaks["whole"]["baseline"], peaks["whole"]["other"]
    good = bool(after and lightning) and abs(after / lightning - 1) <= 0.01 and each["parity"]["exact"]
    failed = failed or not good
    print(each["workload"]["strategy"], "peak_allocated_gib: native", native, "after-forward", after, "lightning", lightning)
    print("  parity", "exact" if each["parity"]["exact"] else "NOT EXACT", "-", "within 1 %" if good else "FAILED")
sys.exit(failed)
'
