"""Many short runs on a machine kept busy: does every one end cleanly, and does every one that loses a rank?

    python benchmarks/soak.py                  # 200 runs in turn over all halves, strategies and wraps
    python benchmarks/soak.py --kill           # 100 runs, in each of which a random rank is killed at a random moment

A run is clean if its exit code is 0, its result complete and stderr empty. One that lost a rank is clean if it ends in
under 30 seconds with another exit code and leaves neither a process nor a file that is no whole result; if the ranks
had ended before one was to be killed, the run must be clean as it is, and another one takes its place.
"""

import argparse
import contextlib
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.options import integer_of_at_least
from common.result import ResultFileError, read_result
from tests.runs import Started, start, torchrun

CELLS = [
    (half, *strategy)
    for strategy in (("ddp",), ("fsdp2", "--fsdp-wrap", "block"), ("fsdp2", "--fsdp-wrap", "root"))
    for half in ("native", "lightning_impl")
]
END_SECONDS = 30.0
LATEST_SECONDS = 10.0
"""The latest moment at which a rank is killed: from its first import to after its last step, on a busy machine."""
NOBODY = "nobody was there to kill"
# Ends with its parent, however that ends.
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10_000))"


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep the machine busy with so many processes."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def command(cell: tuple[str, ...], output: Path, steps: int) -> list[str]:
    """Return the command line of one run on two ranks."""
    half, *strategy = cell
    options = ["--strategy", *strategy, "--preset", "tiny", "--device", "cpu", "--warmup-steps", "2"]
    return torchrun(2, "-m", half, *options, "--steps", str(steps), "--output", str(output))


def undisturbed_run(cell: tuple[str, ...], output: Path, timeout: float) -> str:
    """Run once and return how it ended, in words."""
    with start(command(cell, output, steps=4)) as started:
        return ending(started, output, timeout)


def run_that_loses_a_rank(cell: tuple[str, ...], output: Path, timeout: float, chance: random.Random) -> str:
    """Run once, kill a rank at a random moment after its start, and return how it ended, in words."""
    with start(command(cell, output, steps=200)) as started:
        while len(ranks_of(started)) < 2 and started.process.poll() is None:
            time.sleep(0.05)
        moment = time.monotonic() + chance.uniform(0.0, LATEST_SECONDS)
        while time.monotonic() < moment and started.process.poll() is None:
            time.sleep(0.01)
        ranks = ranks_of(started)
        if not ranks or not kill(chance.choice(ranks)):
            return f"{NOBODY}: {ending(started, output, timeout)}"
        killed_at = time.monotonic()
        word = ending(started, output, timeout)
        seconds = time.monotonic() - killed_at
        if word.startswith("clean"):
            return "NOT CLEAN: exit code 0 after a rank was killed"
        if seconds > END_SECONDS:
            return f"NOT CLEAN: it took {seconds:.0f} s to end"
        if left := started.members():
            return f"NOT CLEAN: {len(left)} processes are left"
        return "clean end" if whole_or_absent(output) else "NOT CLEAN: a damaged result"


def ranks_of(started: Started) -> list[int]:
    """Return the process ids of the ranks that live."""
    return sorted(pid for pid in started.members() if is_rank(pid))


def is_rank(pid: int) -> bool:
    """Say whether a process is a rank, told from torchrun and its helpers by what torchrun gives to ranks."""
    try:
        return b"\0LOCAL_RANK=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def kill(pid: int) -> bool:
    """Kill a process; say whether it was still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def ending(started: Started, output: Path, timeout: float) -> str:
    """Wait for a run and return how it ended, in words."""
    try:
        _, stderr = started.process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"NOT CLEAN: it hung for {timeout:g} s"
    if started.process.returncode:
        return f"exit code {started.process.returncode}"
    if stderr:
        return f"NOT CLEAN: it wrote {stderr.splitlines()[0][:60]!r} on stderr"
    return "clean" if output.exists() and whole_or_absent(output) else "NOT CLEAN: no result"


def whole_or_absent(output: Path) -> bool:
    """Say whether there is no result, or a complete one."""
    try:
        return not output.exists() or read_result(output).outcome.status == "completed"
    except ResultFileError:
        return False


def main() -> int:
    """Print a line a run and a count by ending; exit code 1 unless all were clean."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    count = integer_of_at_least(1)
    parser.add_argument("--kill", action="store_true", help="kill a random rank at a random moment of every run")
    parser.add_argument("--runs", type=count, metavar="N", help="runs in all (default: 200, with --kill 100)")
    parser.add_argument(
        "--busy", type=integer_of_at_least(0), default=2, metavar="N", help="processes that spin meanwhile (default: 2)"
    )
    parser.add_argument("--timeout", type=count, default=180, metavar="SECONDS", help="limit of a run (default: 180)")
    parser.add_argument("--seed", type=integer_of_at_least(0), default=1, metavar="N", help="of what is random")
    options = parser.parse_args()
    runs = options.runs or (100 if options.kill else 200)
    chance = random.Random(options.seed)

    endings: Counter[tuple[str, str]] = Counter()
    with busy(options.busy), tempfile.TemporaryDirectory() as folder:
        number = 0
        while number < runs:
            cell, output = CELLS[number % len(CELLS)], Path(folder) / f"{sum(endings.values())}.json"
            started = time.monotonic()
            if options.kill:
                how = run_that_loses_a_rank(cell, output, options.timeout, chance)
            else:
                how = undisturbed_run(cell, output, options.timeout)
            endings[" ".join(cell), how] += 1
            number += how != f"{NOBODY}: clean"
            print(f"{number}/{runs} {' '.join(cell)}: {how} ({time.monotonic() - started:.1f} s)", flush=True)

    what = "runs that lost a rank" if options.kill else "runs"
    versions = f"Python {platform.python_version()}, torch {version('torch')}, lightning {version('lightning')}"
    print(f"\n{date.today()}: {runs} {what}, 2 gloo ranks, beside {options.busy} busy processes; {versions}")
    for (cell, how), times in sorted(endings.items()):
        print(f"  {cell}: {how}: {times}")
    clean = sum(times for (_, how), times in endings.items() if how in ("clean", "clean end"))
    print(f"{clean} of {runs} ended cleanly")
    return 0 if clean == runs else 1


if __name__ == "__main__":
    sys.exit(main())
