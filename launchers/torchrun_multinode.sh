#!/usr/bin/env bash
# One run of one half on several nodes of a cluster without Slurm, by torchrun. Start it on every node, with the number
# of the node (0 to NNODES - 1) and the same meeting point: a free port of node 0, by a name or address that all reach.
#
#     on node 0: NNODES=2 NODE_RANK=0 RDZV_ENDPOINT=node0:29500 bash launchers/torchrun_multinode.sh native OPTIONS
#     on node 1: NNODES=2 NODE_RANK=1 RDZV_ENDPOINT=node0:29500 bash launchers/torchrun_multinode.sh native OPTIONS
#
# with the same OPTIONS, for example --strategy ddp --preset small. Each node starts a rank for every visible GPU, or
# two ranks on CPUs; NPROC=4 says how many. All nodes need the same number.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if [[ ${1:-} != native && ${1:-} != lightning_impl ]]; then
    say "'${1:-}' is neither half; type: NNODES=2 NODE_RANK=0 RDZV_ENDPOINT=HOST:29500 bash $0 native --strategy ddp"
    exit 2
fi
for name in NNODES NODE_RANK RDZV_ENDPOINT; do
    if [[ -z ${!name:-} ]]; then
        say "$name is not set; type: NNODES=2 NODE_RANK=0 RDZV_ENDPOINT=HOST:29500 bash $0 $*"
        exit 2
    fi
done
if [[ ! $NNODES =~ ^[0-9]+$ || ! $NODE_RANK =~ ^[0-9]+$ ]] || ((NODE_RANK >= NNODES)); then
    say "NODE_RANK=$NODE_RANK NNODES=$NNODES: the nodes are numbered from 0 to NNODES - 1"
    exit 2
fi
if [[ ! $RDZV_ENDPOINT =~ ^.+:[0-9]+$ ]]; then
    say "RDZV_ENDPOINT=$RDZV_ENDPOINT is no HOST:PORT; name node 0 and a free port, for example node0:29500"
    exit 2
fi

ensure_environment
ranks=${NPROC:-$("$python" -c 'import torch; print(torch.cuda.device_count() or 2)')}
cores=$(nproc)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}
exec "$python" -m torch.distributed.run --nnodes="$NNODES" --node-rank="$NODE_RANK" --nproc-per-node="$ranks" \
    --rdzv-backend=static --rdzv-endpoint="$RDZV_ENDPOINT" -m "$@"
