#!/usr/bin/env bash
# What docs/one-h200.md shows, on a machine with one GPU: every cell once for parity, then medium in bf16 with repeats.
#
#     bash benchmarks/one_gpu.sh results/one-gpu            # everything, about 12 minutes on an H200
#     bash benchmarks/one_gpu.sh results/one-gpu parity     # one part: parity or repeats
#
# PYTHON names the interpreter (default python3); it must have this project's dependencies.
set -euo pipefail
folder=${1:?name a folder for the results}
parts=${2:-parity repeats}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

compare() { "${PYTHON:-python3}" compare.py run --device cuda --nproc-per-node 1 --no-responsibilities "$@"; }

for part in $parts; do
    case $part in
        parity)
            for preset in small medium; do
                for precision in fp32 bf16; do
                    compare --preset "$preset" --precision "$precision" --repeats 1 \
                        --output-dir "$folder/$preset-$precision"
                done
            done
            ;;
        repeats)
            compare --preset medium --precision bf16 --batch-size-per-device 64 --repeats 3 \
                --output-dir "$folder/medium-bf16-batch64"
            ;;
        *)
            echo "$part is neither parity nor repeats" >&2
            exit 2
            ;;
    esac
done
