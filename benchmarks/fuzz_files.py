"""Many damaged results through `compare.py show`, in this process: no exception, no hang, nothing a terminal obeys.

    python benchmarks/fuzz_files.py --count 10000 --seed 1

hypothesis damages valid results (tests/fuzz.py says how) and shows each folder in one of the four formats. A failure is
reduced to a small one and printed with its traceback.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hypothesis
import pydantic
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from common.options import integer_of_at_least
from tests.fuzz import FORMATS, OPTIONS, WIDTH, check, folders


def main() -> int:
    """Print a count by outcome; a failure ends with its traceback."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--count", type=integer_of_at_least(1), default=10_000, metavar="N", help="folders (default: 10000)"
    )
    parser.add_argument(
        "--seed", type=integer_of_at_least(0), default=1, metavar="N", help="of hypothesis (default: 1)"
    )
    options = parser.parse_args()
    os.environ["COLUMNS"] = str(WIDTH)
    outcomes: Counter[str] = Counter()
    slowest = 0.0

    with tempfile.TemporaryDirectory() as folder:

        @seed(options.seed)
        @settings(
            max_examples=options.count,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(folders(), st.sampled_from(FORMATS), st.sampled_from(OPTIONS))
        def show(contents: list[bytes], style: str, option: str) -> None:
            nonlocal slowest
            started = time.monotonic()
            check(Path(folder), contents, style, option, outcomes)
            slowest = max(slowest, time.monotonic() - started)

        started = time.monotonic()
        show()
        seconds = time.monotonic() - started

    shown = sum(times for name, times in outcomes.items() if name.startswith("exit code"))
    print(f"{shown} folders of damaged results shown, seed {options.seed}: no exception, no hang")
    for name, times in sorted(outcomes.items()):
        print(f"  {name}: {times}")
    print(f"  slowest: {slowest:.2f} s; all: {seconds:.0f} s")
    print(f"  Python {platform.python_version()}, pydantic {pydantic.VERSION}, hypothesis {hypothesis.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
