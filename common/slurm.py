"""Slurm's notation, and what it says about the job and step that this process belongs to."""

import re
import zlib
from collections.abc import Mapping

from common.errors import RunError

FIRST_PORT, PORTS = 15000, 15000
"""Where ranks meet: above the ports of services, below Linux's ephemeral ones (32768)."""
INTERACTIVE_STEP = "4294967290"
"""Step id of the shell that ``salloc`` opens on a node where a site has set use_interactive_step."""


def tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's compact counts: ``2(x3),1`` is [2, 2, 2, 1].

    Raises:
        RunError: the text is in no form that Slurm writes.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise RunError(f"SLURM_TASKS_PER_NODE={text!r} is not in Slurm's form, for example 4(x2)")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def first_host(node_list: str) -> str:
    """Return the first host of a Slurm node list: ``gpu[07-09,12],login`` gives ``gpu07``."""
    first = re.match(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", node_list)
    if first is None:
        raise RunError(f"the node list {node_list!r} of Slurm names no host; set MASTER_ADDR to the first host")
    return re.sub(r"\[([^,\-\]]+)[^\]]*\]", r"\1", first[0])


def step_port(job_id: str, step_id: str) -> int:
    """Return the port at which the ranks of a step meet: two steps of one job never get the same one."""
    job = int(job_id) if job_id.isdecimal() else zlib.crc32(job_id.encode())
    step = int(step_id) if step_id.isdecimal() else zlib.crc32(step_id.encode())
    # 101 apart, so that jobs submitted one after the other, which may share a node, do not meet either.
    return FIRST_PORT + (job * 101 + step) % PORTS


def describe_job(environ: Mapping[str, str]) -> dict[str, str | None] | None:
    """Return the job, step, node list and layout for the result; None outside Slurm."""
    if "SLURM_JOB_ID" not in environ:
        return None
    step = "STEP_" if "SLURM_STEP_ID" in environ else ""
    return {
        "job_id": environ["SLURM_JOB_ID"],
        "step_id": environ.get("SLURM_STEP_ID"),
        "node_list": environ.get(f"SLURM_{step or 'JOB_'}NODELIST"),
        "tasks_per_node": environ.get(f"SLURM_{step}TASKS_PER_NODE"),
    }
