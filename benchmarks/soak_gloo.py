"""Many short gloo runs, one after the other, on a machine kept busy: does every one end with exit code 0?

    python benchmarks/soak_gloo.py --runs 60 --busy 2

gloo can abort a process while its interpreter shuts down, now and then and only under load, after the result was
written. The order in which both halves part from each other prevents that; this script is the evidence.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.options import integer_of_at_least
from tests.runs import run, tail, torchrun

HALVES = ("native", "lightning_impl")
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


def one_run(half: str, folder: Path, timeout: float) -> int | str:
    """Run one half with FSDP2 on two ranks; return its exit code, and show the end of stderr if that is not 0."""
    options = ["--strategy", "fsdp2", "--preset", "tiny", "--device", "cpu", "--warmup-steps", "2", "--steps", "4"]
    output = ["--output", str(folder / "result.json"), "--overwrite-output"]
    try:
        process = run(torchrun(2, "-m", half, *options, *output), timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"killed after {timeout:g} s"
    if process.returncode:
        print(tail(process), file=sys.stderr)
    return process.returncode


def main() -> int:
    """Print a line a run and a count by exit code; exit code 1 unless all were 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    count = integer_of_at_least(1)
    parser.add_argument("--runs", type=count, default=60, metavar="N", help="runs in all (default: 60)")
    parser.add_argument(
        "--busy", type=integer_of_at_least(0), default=2, metavar="N", help="processes that spin meanwhile (default: 2)"
    )
    parser.add_argument("--timeout", type=count, default=180, metavar="SECONDS", help="limit of a run (default: 180)")
    options = parser.parse_args()

    endings: Counter[tuple[str, int | str]] = Counter()
    with busy(options.busy), tempfile.TemporaryDirectory() as folder:
        for number in range(options.runs):
            half = HALVES[number % len(HALVES)]
            started = time.monotonic()
            ending = one_run(half, Path(folder), options.timeout)
            endings[half, ending] += 1
            print(f"{number + 1}/{options.runs} {half}: {ending} ({time.monotonic() - started:.1f} s)", flush=True)
    print(f"\n{options.runs} runs of fsdp2 on 2 gloo ranks beside {options.busy} busy processes")
    for (half, ending), times in sorted(endings.items(), key=str):
        print(f"  {half} ended with {ending}: {times}")
    return 0 if {ending for _, ending in endings} == {0} else 1


if __name__ == "__main__":
    sys.exit(main())
