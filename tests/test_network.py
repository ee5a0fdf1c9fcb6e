import socket

import pytest

from common.errors import RunError
from common.launch import Launch
from common.network import check_network
from common.options import RunConfig


def check(host: str = "localhost", nodes: int = 1, device: str = "auto", **environ: str) -> None:
    launch = Launch("srun", 0, 0, 2 * nodes, 2, host, 29500)
    check_network(RunConfig("native", "ddp", device=device), launch, {"SLURM_STEP_NUM_NODES": str(nodes), **environ})


@pytest.fixture
def unresolvable(monkeypatch):
    def fail(host, port):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)


def test_a_host_that_resolves_is_accepted():
    check()


def test_a_host_that_does_not_resolve_is_named_with_the_reason(unresolvable):
    with pytest.raises(RunError, match=r"meet at node1, which does not resolve on .* \(Name or service not known\);"):
        check("node1")


def test_a_world_of_one_meets_nobody(unresolvable):
    check_network(RunConfig("native", "ddp"), Launch("none", 0, 0, 1, 1, "nosuch", 0), {})


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.1.1", "::1"])
def test_the_loopback_is_no_meeting_point_for_several_nodes(host):
    with pytest.raises(RunError, match=f"MASTER_ADDR={host} is the loopback of each node, but .* on 2 nodes"):
        check(host, nodes=2)


def test_several_agents_on_one_machine_may_meet_at_the_loopback():
    launch = Launch("torchrun", 0, 0, 4, 2, "localhost", 29500)
    check_network(RunConfig("native", "ddp"), launch, {})


def test_an_interface_that_is_not_there_is_shown_with_those_that_are():
    with pytest.raises(RunError, match=r"GLOO_SOCKET_IFNAME=nosuch0, .* no interface nosuch0, only .*\blo\b"):
        check(GLOO_SOCKET_IFNAME="nosuch0")


def test_of_several_interfaces_the_wrong_one_is_named():
    with pytest.raises(RunError, match=r"GLOO_SOCKET_IFNAME=lo,nosuch0, .* no interface nosuch0"):
        check(GLOO_SOCKET_IFNAME="lo,nosuch0")


def test_the_loopback_interface_does_for_one_node_only():
    check(GLOO_SOCKET_IFNAME="lo")
    with pytest.raises(RunError, match="GLOO_SOCKET_IFNAME=lo is the loopback of each node"):
        check("192.0.2.1", nodes=2, GLOO_SOCKET_IFNAME="lo")


def test_ranks_on_gpus_do_not_care_for_gloos_interface():
    check(device="cuda", GLOO_SOCKET_IFNAME="nosuch0")
