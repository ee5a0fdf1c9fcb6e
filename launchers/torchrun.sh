#!/usr/bin/env bash
# One run of one half on this node, by torchrun: a rank for every visible GPU, or two ranks on CPUs.
#
#     bash launchers/torchrun.sh native         --strategy fsdp2 --preset small --output native.json
#     bash launchers/torchrun.sh lightning_impl --strategy fsdp2 --preset small --output lightning.json
#     NPROC=4 bash launchers/torchrun.sh native --strategy ddp
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if [[ ${1:-} != native && ${1:-} != lightning_impl ]]; then
    say "'${1:-}' is neither half; type: bash launchers/torchrun.sh native|lightning_impl --strategy ddp|fsdp2 ..."
    exit 2
fi
ensure_environment
ranks=${NPROC:-$("$python" -c 'import torch; print(torch.cuda.device_count() or 2)')}
# torchrun would give every rank one CPU thread, and say so at length; share the cores instead.
cores=$(nproc)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}
exec "$python" -m torch.distributed.run --standalone --nproc-per-node="$ranks" -m "$@"
