"""How one rank's end becomes everybody's: beside the process group, since the others may be waiting in a collective.

Every rank waits on a thread of its own, without polling, for a verdict in the rendezvous' key-value store. A rank that
fails writes the verdict for all; rank zero then writes the result file, and every process ends. Nothing happens in the
timed window unless somebody fails.
"""

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from common.launch import Launch
from common.result import Outcome

FOREVER = timedelta(days=30)
PATIENCE = timedelta(seconds=10)
EXIT_CODES = {"completed": 0, "out_of_memory": 4, "diverged": 5, "out_of_sync": 5, "untrained": 5}
"""Exit codes of a runner, by outcome; 1 is any other failure, 2 a wrong call."""


class FailureWatch:
    """This rank's ear for a verdict, and its voice."""

    def __init__(self, launch: Launch, respond: Callable[[Outcome], None]) -> None:
        self._rank = launch.rank
        self._world_size = launch.world_size
        self._respond = respond
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to listen. The process group exists, so the environment names the store."""
        if self._world_size > 1:
            self._store = self._connect()
            self._thread = threading.Thread(target=self._listen, daemon=True, name="failure watch")
            self._thread.start()

    def stop(self) -> None:
        """Stop listening, at the end of a run that went well."""
        if self._thread is not None:
            self._connect().set(self._key(self._rank), "")
            self._thread.join()
            self._thread = None

    def announce(self, outcome: Outcome) -> None:
        """Tell every other rank how the run ended, and wait until rank zero has written it down."""
        if self._thread is None:
            return
        # A store that is gone, or silent for too long, can tell nobody anything: this rank's own outcome stands.
        with contextlib.suppress(dist.DistError):
            store = self._connect()
            for rank in range(self._world_size):
                if rank != self._rank:
                    store.set(self._key(rank), outcome.model_dump_json())
            self._part(store)

    def _listen(self) -> None:
        try:
            self._store.wait([self._key(self._rank)], FOREVER)
            verdict = self._store.get(self._key(self._rank)).decode()
        except dist.DistError:  # the store's process is gone, and with it the run: its launcher ends us
            return
        if not verdict:
            return
        outcome = Outcome.model_validate_json(verdict)
        if self._rank == 0:
            self._respond(outcome)
        with contextlib.suppress(dist.DistError):
            self._part(self._connect())
        end_process(EXIT_CODES[outcome.status])

    def _part(self, store: dist.TCPStore) -> None:
        """Leave in order: all wait for rank zero's file, and rank zero, which may be host of the store, for all."""
        if self._rank == 0:
            store.set("failure watch/written", "")
            store.wait([f"failure watch/left/{rank}" for rank in range(1, self._world_size)], PATIENCE)
        else:
            store.wait(["failure watch/written"], PATIENCE)
            store.set(f"failure watch/left/{self._rank}", "")

    def _connect(self) -> dist.TCPStore:
        """Return a connection of its own: one that waits cannot be used by anybody else."""
        return dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=PATIENCE
        )

    @staticmethod
    def _key(rank: int) -> str:
        return f"failure watch/{rank}"


def end_process(exit_code: int) -> None:
    """End this process at once: other threads may be in a collective that never returns."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def sizes_in_message(message: str) -> tuple[float | None, float | None]:
    """Return the GiB that were asked for and that were free, from the text of a ``torch.OutOfMemoryError``."""
    return _gib(r"Tried to allocate ([\d.]+) (\w+)", message), _gib(r"of which ([\d.]+) (\w+) is free", message)


def _gib(pattern: str, message: str) -> float | None:
    found = re.search(pattern, message)
    units = {"bytes": 2.0**-30, "KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0}
    return float(found[1]) * units[found[2]] if found and found[2] in units else None
