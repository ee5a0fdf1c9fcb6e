#!/usr/bin/env bash
# The whole comparison on any Linux machine, without a GPU: two CPU ranks, the tiny preset, a few minutes at most.
#
#     bash launchers/demo.sh [options of `compare.py run`]
#
# Uses the active virtual environment, or creates .venv in this folder. Can be run again at any time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

ensure_environment
say "running native PyTorch and Lightning in turn, on two CPU ranks"
exec "$python" compare.py run --device cpu --nproc-per-node 2 --preset tiny "$@"
