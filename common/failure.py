"""How one rank's end becomes everybody's: beside the process group, since the others may be waiting in a collective.

Every rank waits on a thread of its own, without polling, for a verdict in the rendezvous' key-value store. A rank that
fails writes the verdict for all, and every process ends; if the failure is a result, rank zero writes its file before.
What follows from a first failure, such as a lost connection, is not worth another word: one rank speaks. Nothing
happens in the timed window unless somebody fails.
"""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from common.launch import Launch
from common.meeting import FAREWELL, attempt, is_served_by_torchrun
from common.result import Outcome

FOREVER = timedelta(days=30)
PATIENCE = timedelta(seconds=10)
STEP_BACK_SECONDS = 0.5
"""By how much ranks that follow a failure end later, so that a launcher's report begins with the one that failed."""
FAILED = 1
EXIT_CODES = {"completed": 0, "out_of_memory": 4, "diverged": 5, "out_of_sync": 5, "untrained": 5}
"""Exit codes of a runner, by outcome; 1 is any other failure, 2 a wrong call."""
NO_RESULT = "failed"
"""The verdict about a run whose end is no result."""


class FailureWatch:
    """This rank's ear for a verdict, and its voice."""

    def __init__(self, launch: Launch, respond: Callable[[Outcome], None]) -> None:
        self._launch = launch
        self._rank = launch.rank
        self._world_size = launch.world_size
        self._respond = respond
        self._thread: threading.Thread | None = None
        # Two threads of a process may find out about its end: the second waits here until the process is gone.
        self._ending = threading.Lock()

    def start(self) -> None:
        """Begin to listen, once the ranks have met or the process group exists; a second call does nothing."""
        if self._world_size > 1 and self._thread is None:
            self._store = self._connect()
            self._thread = threading.Thread(target=self._listen, daemon=True, name="failure watch")
            self._thread.start()

    def stop(self) -> None:
        """Stop listening: the run went well, or all ranks know by themselves that it did not."""
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
            self._is_first(store)
            self._tell_all(store, outcome.model_dump_json())
            self._part(store)

    def announce_failure(self, tell: Callable[[], None]) -> None:
        """End all other ranks; ``tell`` what happened before that, if this rank is the first to fail."""
        self._ending.acquire()
        store = None
        if self._thread is not None:
            with contextlib.suppress(dist.DistError):
                store = self._connect()
        try:
            is_first = store is None or self._is_first(store)
        except dist.DistError:  # the store is gone, and with it whoever was first
            is_first = True
        if is_first:
            tell()
        with contextlib.suppress(dist.DistError):
            if store is not None and is_first:
                self._tell_all(store, NO_RESULT)
            if store is not None:
                self._leave(store)
        if not is_first:
            time.sleep(STEP_BACK_SECONDS)

    def _listen(self) -> None:
        try:
            self._store.wait([self._key(self._rank)], FOREVER)
            verdict = self._store.get(self._key(self._rank)).decode()
        except dist.DistError:
            # Its host is gone, which is rank zero or torchrun: nobody is left to end this process.
            self._ending.acquire()
            host, speaker = ("torchrun", 0) if is_served_by_torchrun() else ("rank 0", 1)
            if self._rank == speaker:
                print(f"error: {host} is gone, at which the ranks met (killed?); there is no result", file=sys.stderr)
            end_process(FAILED)
        if verdict == NO_RESULT:
            with contextlib.suppress(dist.DistError):
                self._leave(self._connect())
            time.sleep(STEP_BACK_SECONDS)
            end_process(FAILED)
        if verdict:
            outcome = Outcome.model_validate_json(verdict)
            if self._rank == 0:
                self._respond(outcome)
            with contextlib.suppress(dist.DistError):
                self._part(self._connect())
            end_process(EXIT_CODES[outcome.status])

    def _is_first(self, store: dist.Store) -> bool:
        """Say whether no other rank has failed before."""
        return store.compare_set("first", "", str(self._rank)).decode() == str(self._rank)

    def _tell_all(self, store: dist.Store, verdict: str) -> None:
        for rank in range(self._world_size):
            if rank != self._rank:
                store.set(self._key(rank), verdict)

    def _part(self, store: dist.Store) -> None:
        """Leave in order: all wait for rank zero's file, and rank zero, which may be host of the store, for all."""
        if self._rank == 0:
            store.set("written", "")
            store.wait([f"left/{rank}" for rank in range(1, self._world_size)], PATIENCE)
        else:
            store.wait(["written"], PATIENCE)
            store.set(f"left/{self._rank}", "")

    def _leave(self, store: dist.Store) -> None:
        """Leave where there is no file to wait for; rank zero gives those that still live a moment to hear of it."""
        if self._rank == 0:
            store.wait([f"left/{rank}" for rank in range(1, self._world_size)], FAREWELL)
        else:
            store.set(f"left/{self._rank}", "")

    def _connect(self) -> dist.Store:
        """Return a connection of its own: one that waits cannot be used by anybody else."""
        # Port 0: Lightning starts the workers, and its environment names the port that it chose.
        known = self._launch.master_port != 0
        address = self._launch.master_addr if known else os.environ["MASTER_ADDR"]
        port = self._launch.master_port if known else int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, is_master=False, timeout=PATIENCE)
        return dist.PrefixStore(f"failure watch/{attempt()}", store)

    @staticmethod
    def _key(rank: int) -> str:
        return f"verdict/{rank}"


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
