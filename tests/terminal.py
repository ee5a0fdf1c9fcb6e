"""A person at a terminal: a program behind a pseudo-terminal, typed to when it asks."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Sequence

from tests.runs import ROOT, clean_environment

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Runs a command in the project's root behind a terminal; nothing of it survives the ``with`` block."""

    def __init__(self, command: Sequence[str], columns: int = 80, lines: int = 24, **environ: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {**clean_environment(), "TERM": "xterm", **environ}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            environment.pop(name, None)
        # A session whose terminal this is, so that Ctrl-C reaches it as it would a person's program.
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.text = ""
        """Everything on the screen so far, without colours."""
        self._raw, self._read_to = b"", 0

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)

    def wait_for(self, pattern: str, timeout: float = 60) -> str:
        """Return what appeared since the last call, up to the pattern."""
        deadline = time.monotonic() + timeout
        while not (found := re.search(pattern, self.text[self._read_to :])):
            if not self._receive(deadline - time.monotonic()):
                raise AssertionError(f"no {pattern!r} within {timeout} s or before the end; the screen:\n{self.text}")
        start, self._read_to = self._read_to, self._read_to + found.end()
        return self.text[start : self._read_to]

    def type(self, text: str) -> None:
        """Type characters; ``\\x03`` is Ctrl-C and ``\\x04`` Ctrl-D."""
        os.write(self._master, text.encode())

    def finish(self, timeout: float = 60) -> int:
        """Return the exit code once the program has ended."""
        deadline = time.monotonic() + timeout
        while self._receive(deadline - time.monotonic()):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def _receive(self, seconds: float) -> bool:
        """Take in what there is to read; False at the end of the program or of the time."""
        if seconds <= 0 or not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            received = os.read(self._master, 65536)
        except OSError:  # Linux's way to say that nobody has the other end open
            return False
        self._raw += received
        self.text = ANSI.sub("", self._raw.decode("utf-8", "replace")).replace("\r", "")
        return bool(received)
