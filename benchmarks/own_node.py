"""Run a module as ``python -m`` would, on a rank that takes itself for the only one of its node.

    torchrun --standalone --nproc-per-node=2 -m benchmarks.own_node native --device cuda --strategy ddp

NCCL refuses two ranks on one GPU, which it knows by its host and bus. Under a host's name of its own (NCCL_HOSTID, for
NCCL 2.20 or newer) each rank gets the first GPU, and they talk through the loopback's sockets. Collectives, faults and
parity are those of NCCL, and so is the memory; times mean nothing, as the tables then say.
"""

import os
import runpy
import sys

rank = os.environ["RANK"]
os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": rank}
os.environ |= {"NCCL_HOSTID": f"node{rank}", "NCCL_SOCKET_IFNAME": "lo"}
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
