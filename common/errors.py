"""The one exception that a person is meant to read."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

DEPENDENCIES = ("torch", "lightning", "numpy", "scipy", "pydantic", "rich")


class RunError(Exception):
    """A run that cannot start or go on, for a reason its user can act on.

    The message names the value, what would be right and, where there is one, the command to type. It is printed as it
    is, without a traceback, once a node.

    Attributes:
        exit_code: 2 for a wrong call, found before any training; 1 for a run that failed.
        from_one_rank: whether this rank alone knows, so that it speaks whatever its local rank.
    """

    def __init__(self, message: str, exit_code: int = 2, from_one_rank: bool = False) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.from_one_rank = from_one_rank


def run_main(main: Callable[[], int], prog: str) -> NoReturn:
    """Run ``main`` and end the process: with its exit code, or with a :class:`RunError`'s message and exit code."""
    try:
        exit_code = main()
    except RunError as error:
        exit_with_error(prog, error)
    except ModuleNotFoundError as error:
        exit_with_error(prog, missing_package(error))
    except KeyboardInterrupt:  # before the run watches for it, while torch is imported
        exit_with_error(prog, RunError("interrupted before the training; there is no result", exit_code=130))
    sys.exit(exit_code)


def missing_package(error: ModuleNotFoundError) -> RunError:
    """Return what to tell a user whose Python lacks one of this project's dependencies.

    Raises:
        ModuleNotFoundError: it is none of them, so the failure is no matter of installation.
    """
    if error.name is None or error.name.split(".")[0] not in DEPENDENCIES:
        raise error
    return RunError(
        f"{sys.executable} has no {error.name}; use the environment that has: source .venv/bin/activate "
        "(bash launchers/demo.sh creates it)",
        exit_code=1,
    )


def exit_with_error(prog: str, error: RunError) -> NoReturn:
    """Print ``error`` in one line, unless another rank of this node does, and end the process."""
    if error.from_one_rank or _local_rank() in (None, "0"):
        print(f"{prog}: error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)


def _local_rank() -> str | None:
    """Return the local rank that a live launcher gave. A stray LOCAL_RANK does not count: nobody else would speak."""
    if "TORCHELASTIC_RUN_ID" in os.environ or {"NODE_RANK", "MASTER_PORT"} <= os.environ.keys():
        return os.environ.get("LOCAL_RANK")
    return os.environ.get("SLURM_LOCALID") if "SLURM_STEP_ID" in os.environ else None
