"""Whether watching who calls what changes the times of a run: whole native runs, watched and unwatched in turn.

    python benchmarks/trace_cost.py
    python benchmarks/trace_cost.py --rounds 12 --preset small --nproc-per-node 1

Watching ends before the timed window, so the laps of both kinds should differ by noise alone. Each run counts by the
median of its laps; a round is watched, unwatched, unwatched, watched. Exit code 1 unless the 95 % interval of the ratio
contains 1. By chance alone it misses 1 in one of twenty calls of this script.
"""

import argparse
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.errors import RunError, run_main
from common.options import STRATEGIES, OneLineParser, integer_of_at_least
from common.presets import PRESETS
from common.result import read_result
from comparison.statistics import ratio_of_means

ROOT = Path(__file__).resolve().parent.parent
CHILD = "NATIVE_VS_LIGHTNING_UNWATCHED"
"""Set for the runs that this script starts: 1 for those that nobody watches."""
STEPS = ("--warmup-steps", "5", "--steps", "60")


def main() -> int:
    """Print the ratio of watched over unwatched; return 1 if its interval misses 1."""
    parser = OneLineParser(prog="trace_cost.py", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=integer_of_at_least(1), default=5, metavar="N",
                        help="rounds of four runs (default: 5)")  # fmt: skip
    parser.add_argument("--strategy", choices=STRATEGIES, default="ddp", help="default: ddp")
    parser.add_argument("--preset", choices=PRESETS, default="tiny", help="default: tiny")
    parser.add_argument("--nproc-per-node", type=integer_of_at_least(1), default=1, metavar="N",
                        help="ranks (default: 1)")  # fmt: skip
    options = parser.parse_args()
    medians: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(4 * options.rounds):
            watched = number % 4 in (0, 3)
            medians[watched].append(run(options, watched, Path(folder, f"{number}.json")))
            print(f"{'watched' if watched else 'unwatched'}: {medians[watched][-1]:.4g} ms a step", flush=True)
    ratio = ratio_of_means(medians[False], medians[True])
    passed = ratio.contains(1.0)
    print(f"watched over unwatched: {ratio.value:.4f}, 95 % interval {ratio.low:.4f} to {ratio.high:.4f}: "
          f"{'ok, it contains 1' if passed else 'FAILED'}")  # fmt: skip
    return 0 if passed else 1


def run(options: argparse.Namespace, watched: bool, output: Path) -> float:
    """Run the native half once and return the median of its laps, in milliseconds."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.nproc_per_node}"]
    workload = ["--strategy", options.strategy, "--preset", options.preset, *STEPS, "--output", str(output)]
    process = subprocess.run(
        [sys.executable, *launcher, __file__, *workload], cwd=ROOT, env={**os.environ, CHILD: str(int(not watched))},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    if process.returncode != 0:
        raise RunError(f"a run failed:\n{process.stderr[-2000:]}", exit_code=1)
    result = read_result(output)
    assert (result.responsibilities is not None) == watched
    return result.timing.milliseconds_per_step_median


def run_as_child() -> None:
    """Be ``python -m native``, unwatched if the script that started this says so."""
    if os.environ[CHILD] == "1":
        from common.recorder import RunRecorder

        RunRecorder.watch_calls = lambda *_arguments: None
    sys.argv[0] = "native"
    runpy.run_module("native", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if CHILD in os.environ:
        run_as_child()
    else:
        run_main(main, "trace_cost.py")
