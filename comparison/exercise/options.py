"""The options of ``compare.py exercise``."""

import argparse
from pathlib import Path

from common.options import LAUNCHERS, integer_of_at_least
from common.presets import PRESETS


def add_exercise_options(parser: argparse.ArgumentParser) -> None:
    """Add all options. None stands for what runs choose by themselves, or what earlier results have settled."""
    number = integer_of_at_least(1)
    parser.add_argument("folder", nargs="?", type=Path, metavar="RESULTS",
                        help="folder of results; runs that it lacks are made and put there (default: that of your "
                        "answers, or results/exercise)")  # fmt: skip
    parser.add_argument("--name", metavar="NAME", help="who you are, for the instructor (default: your login)")
    parser.add_argument("--answers", type=Path, metavar="PATH", help="your answers (default: answers/NAME.json)")
    parser.add_argument("--summary", type=Path, metavar="FOLDER", help="show what a class answered, from its files")
    parser.add_argument("--non-interactive", action="store_true",
                        help="a handout: every task with everything revealed. Reads answers from a pipe, starts no "
                        "runs, keeps answers only with --answers")  # fmt: skip
    runs = parser.add_argument_group("runs that are made")
    runs.add_argument("--repeats", type=number, default=3, metavar="N", help="of each cell and implementation; fewer "
                      "than 3 decide nothing (default: 3)")  # fmt: skip
    runs.add_argument("--preset", choices=PRESETS, metavar="{" + ",".join(PRESETS) + "}",
                      help="model dimensions (default: small on GPUs, tiny on CPUs)")  # fmt: skip
    runs.add_argument("--batch-size-per-device", type=number, metavar="N", help="samples of each rank")
    runs.add_argument("--warmup-steps", type=number, metavar="N", help="untimed steps of each run")
    runs.add_argument("--steps", type=number, metavar="N", help="timed steps of each run")
    runs.add_argument("--nproc-per-node", type=number, metavar="N", help="ranks a node")
    runs.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    runs.add_argument("--launcher", choices=LAUNCHERS, help="what starts the ranks")
    parser.set_defaults(global_batch_size=None, precision=None, seed=None, deterministic=False)
