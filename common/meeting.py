"""The ranks' first meeting, before any process group: is everybody there, and was everybody told the same?

Without it a rank that never comes, or one that was started with another option, shows as a wait without a word, or as
a result that is wrong.
"""

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from importlib.metadata import version

import torch
import torch.distributed as dist

from common.errors import RunError
from common.launch import Launch
from common.options import RunConfig
from common.precision import Precision

OF_RANK_ZERO = ("implementation", "output", "overwrite_output", "label", "memory_snapshot", "learning_rate")
"""Fields of a :class:`RunConfig` that may differ between ranks: rank zero's count, or nobody can choose them."""
FAREWELL = timedelta(seconds=3)
"""How long rank zero, which may be host of the store, waits for the others to have read it."""


def meet(config: RunConfig, launch: Launch, facts: Mapping[str, str]) -> dist.Store | None:
    """Wait for every rank, for ``--timeout-seconds`` at most, and compare their facts. A collective call.

    Returns:
        The store at which the ranks met, to be kept while they run; None for a world of one, and where Lightning starts
        the workers itself, with its own command line and later than this.

    Raises:
        RunError: the meeting point can't be used, a rank didn't come, or ranks were told different things.
    """
    if launch.world_size == 1 or launch.launcher == "lightning":
        return None
    store = dist.PrefixStore(f"meeting/{attempt()}", _open_store(config, launch))
    ranks = range(launch.world_size)
    store.set(f"here/{launch.rank}", "\n".join(f"{name}\t{value}" for name, value in facts.items()))
    try:
        store.wait([f"here/{rank}" for rank in ranks], timedelta(seconds=config.timeout_seconds))
    except dist.DistError:
        raise _absence(config, launch, store) from None
    told = [_parse(store.get(f"here/{rank}").decode()) for rank in ranks]
    store.set(f"read/{launch.rank}", "")
    differences = describe_differences(told)
    if differences:
        if launch.rank == 0:
            _wait_quietly(store, [f"read/{rank}" for rank in ranks])
        raise RunError(f"the ranks disagree: {'; '.join(differences)}; start all of them with one command")
    return store


def facts_of_rank(config: RunConfig, device: torch.device, precision: Precision) -> dict[str, str]:
    """Return what must be the same on every rank: options, versions, and the kind and number of devices to be seen."""
    facts = {
        f"--{field.name.replace('_', '-')}": str(getattr(config, field.name))
        for field in fields(config)
        if field.name not in OF_RANK_ZERO
    }
    facts |= {"implementation": config.module, "python": platform.python_version(), "torch": torch.__version__}
    if config.implementation == "lightning":
        facts["lightning"] = version("lightning")
    return facts | {
        "the device": device.type,
        "the number of visible GPUs": str(torch.cuda.device_count()),
        "the precision": precision.resolved,
    }


def describe_differences(told: list[dict[str, str]]) -> list[str]:
    """Return a phrase for each fact that is not the same on all ranks, with every rank's value."""
    differences = []
    for name in dict.fromkeys(name for facts in told for name in facts):
        ranks: dict[str, list[int]] = {}
        for rank, facts in enumerate(told):
            ranks.setdefault(facts.get(name, "unknown"), []).append(rank)
        if len(ranks) > 1:
            values = " and ".join(f"{value} on {_names(found)}" for value, found in ranks.items())
            differences.append(f"{name} is {values}")
    return differences


def attempt() -> str:
    """Return what tells this start of the ranks from others that met at the same place, such as torchrun's restarts."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID")
    return "/".join(os.environ.get(name, "") for name in names)


def is_served_by_torchrun() -> bool:
    """Say whether torchrun serves the store at which the ranks meet; else rank zero does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _open_store(config: RunConfig, launch: Launch) -> dist.TCPStore:
    """Return the key-value store: torchrun's, or one that rank zero serves, which the process group then uses too."""
    is_host = launch.rank == 0 and not is_served_by_torchrun()
    place = f"{launch.master_addr}:{launch.master_port}"
    try:
        return dist.TCPStore(
            launch.master_addr,
            launch.master_port,
            is_master=is_host,
            timeout=timedelta(seconds=config.timeout_seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except dist.DistError as error:
        if "EADDRINUSE" in str(error) or "already in use" in str(error):
            raise RunError(
                f"the ranks cannot meet at {place}: the port is in use on {socket.gethostname()}; choose another for "
                f"all ranks: export MASTER_PORT={launch.master_port + 1}",
                exit_code=1,
                from_one_rank=True,
            ) from None
        raise RunError(
            f"rank {launch.rank} on {socket.gethostname()} found nobody at {place} within {config.timeout_seconds} "
            "seconds (--timeout-seconds): rank 0 did not start, or runs elsewhere; MASTER_ADDR must name the host of "
            "rank 0, as all nodes reach it",
            exit_code=1,
            from_one_rank=launch.local_rank == 1,  # speaks too: the rank that is missing may be local rank 0
        ) from None


def _absence(config: RunConfig, launch: Launch, store: dist.Store) -> RunError:
    """Return the error of all ranks that came; the lowest of them tells it."""
    absent = [rank for rank in range(launch.world_size) if not store.check([f"here/{rank}"])]
    if not absent:  # came in the last moment, too late for us
        absent = [rank for rank in range(launch.world_size) if rank != launch.rank]
    present = [rank for rank in range(launch.world_size) if rank not in absent]
    store.set(f"read/{launch.rank}", "")
    if launch.rank == 0:
        _wait_quietly(store, [f"read/{rank}" for rank in present])
    return RunError(
        f"{_names(absent)} of {launch.world_size} did not come to {launch.master_addr}:{launch.master_port} within "
        f"{config.timeout_seconds} seconds (--timeout-seconds), {_names(present)} did; look for the first error of "
        "what is missing, and start every rank with the same MASTER_ADDR, MASTER_PORT and number of ranks",
        exit_code=1,
        from_one_rank=launch.rank == present[0],
    )


def _wait_quietly(store: dist.Store, keys: list[str]) -> None:
    try:
        store.wait(keys, FAREWELL)
    except dist.DistError:
        return


def _parse(text: str) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in text.splitlines())


def _names(ranks: list[int]) -> str:
    """Return ranks in words: ``rank 3``, ``ranks 0-2, 5``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    text = ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
