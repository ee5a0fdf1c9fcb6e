"""Whether the ranks will be able to meet: asked of this machine before any rank waits for another."""

import os
import socket
from collections.abc import Mapping

from common.errors import RunError
from common.launch import Launch
from common.options import RunConfig


def check_network(config: RunConfig, launch: Launch, environ: Mapping[str, str] = os.environ) -> None:
    """Check the host at which the ranks meet and, unless they are surely on GPUs, the interfaces for gloo.

    Raises:
        RunError: the host's name doesn't resolve, is this node's own loopback although there are several nodes, or an
            interface doesn't exist here.
    """
    if launch.world_size == 1:
        return
    host = launch.master_addr
    several_machines = launch.num_nodes > 1 and environ.get("SLURM_STEP_NUM_NODES", "1") != "1"
    if several_machines and (host == "localhost" or host.startswith("127.") or host == "::1"):
        raise RunError(
            f"MASTER_ADDR={host} is the loopback of each node, but the ranks are on {launch.num_nodes} nodes; leave it "
            "to Slurm with: unset MASTER_ADDR"
        )
    try:
        socket.getaddrinfo(host, launch.master_port)
    except OSError as error:
        raise RunError(
            f"the ranks cannot meet at {host}, which does not resolve on {socket.gethostname()} ({error.strerror}); "
            "name the first node so that all nodes find it: export MASTER_ADDR=ADDRESS"
        ) from None
    if config.device != "cuda":
        _check_interfaces(environ.get("GLOO_SOCKET_IFNAME", ""), several_machines)


def _check_interfaces(wanted: str, several_machines: bool) -> None:
    existing = [name for _, name in socket.if_nameindex()]
    others = [name for name in existing if name != "lo"]
    for name in filter(None, wanted.split(",")):
        if name not in existing:
            raise RunError(
                f"GLOO_SOCKET_IFNAME={wanted}, but {socket.gethostname()} has no interface {name}, only "
                f"{', '.join(existing)}; name one of them, or: unset GLOO_SOCKET_IFNAME"
            )
        if name == "lo" and several_machines:
            raise RunError(
                f"GLOO_SOCKET_IFNAME={wanted} is the loopback of each node, but the ranks are on several nodes; name "
                f"another interface ({', '.join(others) or 'there is none here'}), or: unset GLOO_SOCKET_IFNAME"
            )
