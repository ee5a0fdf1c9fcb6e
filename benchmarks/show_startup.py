"""How long `compare.py show` takes on a folder of 40 results, against importing what it is built on.

    python benchmarks/show_startup.py results/.../ddp-native-1.json results/.../ddp-lightning-1.json

Both commands run in turn, so that a drift of the machine hits both; the medians and their ratio are printed.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
COPIES, ROUNDS, LIMIT = 40, 15, 4.0


def seconds(command: list[str]) -> float:
    """Run ``command`` to its end and return how long that took."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=PROJECT)
    return time.perf_counter() - started


def main() -> int:
    """Print both medians and their ratio; exit code 1 if the ratio is not under the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs=2, type=Path, metavar=("NATIVE", "LIGHTNING"), help="a pair of result files")
    pair = parser.parse_args().results
    with tempfile.TemporaryDirectory() as folder:
        for number in range(COPIES):
            shutil.copy(pair[number % 2], Path(folder) / f"{number:02}.json")
        show = [sys.executable, "compare.py", "show", folder]
        imports = [sys.executable, "-c", "import rich.table, pydantic"]
        rounds = [(seconds(show), seconds(imports)) for _ in range(ROUNDS + 1)][1:]  # the first fills the caches
    shown, imported = (statistics.median(times) for times in zip(*rounds, strict=True))
    print(f"compare.py show, {COPIES} files: {shown * 1e3:.0f} ms")
    print(f"import rich.table, pydantic: {imported * 1e3:.0f} ms")
    print(f"ratio of the medians over {ROUNDS} rounds: {shown / imported:.2f} (must be under {LIMIT:g})")
    return 0 if shown / imported < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
