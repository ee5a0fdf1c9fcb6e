"""How long `compare.py show` takes on a folder of 40 results, against importing what it is built on.

    python compare.py run --repeats 1 --output-dir results/for-show
    python benchmarks/show_startup.py results/for-show

The results of that folder are repeated, each under another time, until there are 40. Both commands run in turn, so that
a drift of the machine hits both; the medians and their ratio are printed.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
FILES, ROUNDS, LIMIT = 40, 15, 4.0


def seconds(command: list[str]) -> float:
    """Run ``command`` to its end and return how long that took."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=PROJECT)
    return time.perf_counter() - started


def main() -> int:
    """Print both medians and their ratio; exit code 1 if the ratio is not under the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="folder of results of `compare.py run`")
    originals = [json.loads(path.read_text()) for path in sorted(parser.parse_args().results.glob("*.json"))]
    with tempfile.TemporaryDirectory() as folder:
        for number, result in zip(range(FILES), itertools.cycle(originals), strict=False):
            result["environment"]["started_at"] = f"2026-01-01T00:00:{number:02}+00:00"
            (Path(folder) / f"{number:02}.json").write_text(json.dumps(result))
        show = [sys.executable, "compare.py", "show", folder]
        imports = [sys.executable, "-c", "import rich.table, pydantic"]
        rounds = [(seconds(show), seconds(imports)) for _ in range(ROUNDS + 1)][1:]  # the first fills the caches
    shown, imported = (statistics.median(times) for times in zip(*rounds, strict=True))
    print(f"compare.py show, {FILES} files: {shown * 1e3:.0f} ms")
    print(f"import rich.table, pydantic: {imported * 1e3:.0f} ms")
    print(f"ratio of the medians over {ROUNDS} rounds: {shown / imported:.2f} (must be under {LIMIT:g})")
    return 0 if shown / imported < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
