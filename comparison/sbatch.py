"""A Slurm job that does ``compare.py run``: written from the command line, checked, printed or submitted."""

import argparse
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import RunError
from common.options import RunConfig, integer_of_at_least

PROJECT = Path(__file__).resolve().parent.parent
# No white space, quotes, comment signs or control characters: a value can't become another directive.
SAFE_VALUE = re.compile(r"[\w.,:@%+=/\[\]&|*()-]+", re.ASCII)
TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}", re.ASCII)
JOB = """\
#!/usr/bin/env bash
# Written by: {call}
{directives}
set -eo pipefail
cd {project}
{setup}set -u  # not before: what module systems load often uses unset variables
# Of this job's own, and of each start's own where Slurm starts the job again: no result is ever replaced.
folder={folder}
[[ ${{SLURM_RESTART_COUNT:-0}} == 0 ]] || folder+=-restart$SLURM_RESTART_COUNT
status=0
{python} compare.py run --output-dir "$folder"{options} || status=$?
[[ ! -d $folder ]] || {python} compare.py show "$folder" >"$folder/tables.txt" || true
exit "$status"
"""


def add_sbatch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is asked of Slurm."""
    parser.add_argument("--submit", action="store_true", help="submit the job instead of printing its script")
    slurm = parser.add_argument_group("allocation")
    number = integer_of_at_least
    slurm.add_argument("--nodes", type=number(1), default=1, metavar="N", help="nodes (default: 1)")
    slurm.add_argument("--gpus-per-node", type=number(0), metavar="N", help="GPUs and ranks of each node; 0: CPUs only")
    slurm.add_argument("--ntasks-per-node", type=number(1), metavar="N", help="ranks of each node of a job on CPUs")
    slurm.add_argument("--cpus-per-task", type=number(1), metavar="N", help="cores of each rank (default: the site's)")
    slurm.add_argument("--gres", action="store_true", help="ask for --gres=gpu:N instead of --gpus-per-node=N")
    slurm.add_argument("--gpu-type", type=_value, metavar="TYPE", help="type of the GPUs, in your site's words")
    slurm.add_argument("--time", type=_time, default="00:30:00", metavar="T", help="time limit (default: 00:30:00)")
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        slurm.add_argument(f"--{name}", type=_value, metavar=name[0].upper(), help=f"{name} of your site")
    slurm.add_argument("--job-name", type=_value, default="native-vs-lightning", metavar="NAME",
                       help="default: native-vs-lightning")  # fmt: skip
    slurm.add_argument("--setup", type=_line, action="append", default=[], metavar="COMMAND",
                       help="a shell command to run first, such as 'module load cuda'; may be repeated")  # fmt: skip


def _value(text: str) -> str:
    if not SAFE_VALUE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} has characters that no batch script should; use letters and digits")
    return text


def _time(text: str) -> str:
    if not TIME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no time limit of Slurm; write minutes, H:M:S or D-H:M:S")
    return text


def _line(text: str) -> str:
    if not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is not one printable line; repeat --setup for another command")
    return text


def job_script(arguments: argparse.Namespace, run_defaults: Mapping[str, Any], argv: list[str]) -> str:
    """Return the batch script for ``arguments``. ``run_defaults`` are all options of ``run`` with their defaults.

    Raises:
        RunError: the job would fail as soon as it starts.
    """
    tasks = _check(arguments)
    run_options = {name: getattr(arguments, name) for name in run_defaults} | {"output_dir": None}
    if run_options["device"] == "auto":
        # Asked for by name, so that a job whose GPUs are not to be seen fails instead of training on its CPUs.
        run_options["device"] = "cuda" if arguments.gpus_per_node else "cpu"
    words = options_as_words(run_options, run_defaults)
    if not all(word.isprintable() for word in [*words, str(arguments.output_dir), *argv]):
        raise RunError(f"{shlex.join(argv)!r} has control characters, which no batch script should; leave them out")
    folder = '"results/slurm-$SLURM_JOB_ID"'
    if arguments.output_dir:
        folder = shlex.quote(str(arguments.output_dir.absolute()))
    return JOB.format(
        call=shlex.join(["python", "compare.py", "sbatch", *argv]),
        directives="\n".join(f"#SBATCH --{directive}" for directive in _directives(arguments, tasks)),
        project=shlex.quote(str(PROJECT)),
        setup="".join(f"{line}\n" for line in arguments.setup),
        folder=folder,
        python=shlex.quote(sys.executable),
        options="".join(f" {shlex.quote(word)}" for word in words),
    )


def _check(arguments: argparse.Namespace) -> int:
    """Return the tasks of each node, or say what is wrong with the call before a job waits in a queue for nothing."""
    from comparison.launchers import check_tasks

    gpus, tasks, nodes = arguments.gpus_per_node, arguments.ntasks_per_node, arguments.nodes
    if not gpus and not tasks:
        raise RunError(
            "how many ranks on each node? Add --gpus-per-node N, or for a job on CPUs: "
            "--gpus-per-node 0 --ntasks-per-node N"
        )
    if gpus and tasks not in (None, gpus):
        raise RunError(
            f"--gpus-per-node {gpus}, but --ntasks-per-node {tasks}; every rank has one GPU: leave the latter out"
        )
    if arguments.device == "cuda" and not gpus:
        raise RunError("--device cuda, but the job asks for no GPU; add --gpus-per-node N")
    if arguments.launcher == "torchrun" and nodes > 1:
        raise RunError(f"--launcher torchrun starts ranks on one node, not on {nodes}; use --launcher srun-torchrun")
    ranks = gpus or tasks
    check_tasks(ranks, arguments.nproc_per_node)
    RunConfig("native", "ddp", batch_size_per_device=arguments.batch_size_per_device,
              global_batch_size=arguments.global_batch_size).local_batch_size(nodes * ranks)  # fmt: skip
    folder = arguments.output_dir
    if folder and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"--output-dir {folder} is not empty; name a new folder")
    return ranks


def _directives(arguments: argparse.Namespace, tasks: int) -> list[str]:
    kind = f"{arguments.gpu_type}:" if arguments.gpu_type else ""
    directives = [
        f"job-name={arguments.job_name}",
        f"nodes={arguments.nodes}",
        f"ntasks-per-node={tasks}",
        f"time={arguments.time}",
        "open-mode=append",  # a job that Slurm starts again adds to its output instead of replacing it
    ]
    if arguments.gpus_per_node:
        gpus = f"{kind}{arguments.gpus_per_node}"
        directives.append(f"gres=gpu:{gpus}" if arguments.gres else f"gpus-per-node={gpus}")
    for name in ("cpus_per_task", "partition", "account", "qos", "constraint", "reservation"):
        if (value := getattr(arguments, name)) is not None:
            directives.append(f"{name.replace('_', '-')}={value}")
    return directives


def options_as_words(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Return the command line that gives ``options``, without those that have their default."""
    words: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if value == defaults[name]:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", str(value)]
    return words


def submit(script: str) -> str:
    """Submit a batch script and return the job's id.

    Raises:
        RunError: there is no sbatch here, or it refused the job.
    """
    import subprocess

    try:
        answer = subprocess.run(["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RunError("there is no sbatch on the PATH; leave --submit out to print the script", exit_code=1) from None
    if answer.returncode != 0:
        raise RunError(f"sbatch refused the job: {answer.stderr.strip()}", exit_code=1)
    return answer.stdout.strip().split(";")[0]
