"""Parity under NCCL where there is one GPU: several ranks share it, each as a node of its own (``own_node.py``).

    python benchmarks/nccl_on_one_gpu.py results/nccl-on-one-gpu --ranks 2
    python benchmarks/nccl_on_one_gpu.py results/gloo --device cpu --presets tiny --cells ddp    # a test without GPUs

Every cell, native and Lightning: both must start from the weights and batches of a run on CPU ranks and have equal
losses and final weights, to the last bit. Times mean nothing here; ``multi_gpu.sh`` measures them on several GPUs.
Exit code 1 if a run failed or anything is not equal.
"""

import argparse
import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.errors import run_main
from common.foreign import ResultFileError
from common.options import IMPLEMENTATION_MODULES, OneLineParser, integer_of_at_least
from common.presets import PRESETS
from common.result import Result, read_result
from comparison.loading import Run
from comparison.metrics import parity
from comparison.pairing import Pair

ROOT = Path(__file__).resolve().parent.parent
CELLS = {
    "ddp": ["--strategy", "ddp"],
    "fsdp2-block": ["--strategy", "fsdp2", "--fsdp-wrap", "block"],
    "fsdp2-root": ["--strategy", "fsdp2", "--fsdp-wrap", "root"],
}
RUN_SECONDS = 300
"""Limit of one run."""


def main() -> int:
    """Print a line a cell; return 1 unless all are equal."""
    options = parse_options()
    folder = options.folder / f"{options.ranks}-ranks"
    folder.mkdir(parents=True)
    cells = list(product(options.presets, options.precisions, options.cells))
    runs: dict[Path, list[str]] = {}
    for preset in options.presets:
        on_cpu = ["--device", "cpu", "--precision", "fp32", "--warmup-steps", "1", "--steps", "1"]
        runs[folder / preset / "cpu.json"] = ["native", *CELLS["ddp"], "--preset", preset, *on_cpu]
    for preset, precision, cell in cells:
        workload = [*CELLS[cell], "--preset", preset, "--precision", precision, "--device", options.device]
        for name, module in IMPLEMENTATION_MODULES.items():
            steps = ["--warmup-steps", "2", "--steps", str(options.steps), *["--deterministic"] * options.deterministic]
            runs[folder / preset / f"{cell}-{precision}-{name}.json"] = [module, *workload, *steps]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda file: train(options, runs[file], file), runs))

    failed = False
    for preset, precision, cell in cells:
        files = [folder / preset / f"{cell}-{precision}-{name}.json" for name in IMPLEMENTATION_MODULES]
        try:
            native, lightning = (Run(file, read_result(file)) for file in files)
            on_cpu = read_result(folder / preset / "cpu.json")
        except (ResultFileError, OSError) as error:
            print(f"{preset} {precision} {cell}: FAILED: {error}; see the .log beside it")
            failed = True
            continue
        found = parity(Pair((native,), (lightning,)))
        alike = start_of(native.result) == start_of(lightning.result) == start_of(on_cpu)
        share = native.result.parameters.local_parameter_fraction
        print(
            f"{preset} {precision} {cell}: {found.sentence()}; started {'as' if alike else 'NOT AS'} CPU ranks did; "
            f"rank zero holds {share:.4f} of the parameters"
        )
        failed |= not (found.exact and alike)
    return 1 if failed else 0


def train(options: argparse.Namespace, command: list[str], file: Path) -> None:
    """Run once, with all that it prints in a log beside its result."""
    file.parent.mkdir(exist_ok=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    output = ["--batch-size-per-device", str(options.batch), "--output", str(file.resolve())]
    with file.with_suffix(".log").open("w") as log, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, *launcher, "-m", "benchmarks.own_node", *command, *output],
            env={"OMP_NUM_THREADS": "1"} | os.environ,
            cwd=ROOT, stdout=log, stderr=log, timeout=RUN_SECONDS, check=False,
        )  # fmt: skip


def start_of(result: Result) -> tuple[str, str]:
    """Return what every run of a preset, a number of ranks and a batch must start from."""
    return result.workload.initial_weights_sha256, result.workload.batch_sha256


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = OneLineParser(prog="nccl_on_one_gpu.py", description=__doc__.splitlines()[0])
    count = integer_of_at_least(1)
    parser.add_argument("folder", type=Path, help="a folder for results and logs; N-ranks in it must be new")
    parser.add_argument("--ranks", type=integer_of_at_least(2), default=2, metavar="N", help="default: 2")
    for name, known, default in (
        ("--presets", list(PRESETS), ["small", "medium"]),
        ("--precisions", ["bf16", "fp32"], ["bf16", "fp32"]),
        ("--cells", list(CELLS), list(CELLS)),
    ):
        what = f"of {', '.join(known)} (default: {' '.join(default)})"
        parser.add_argument(name, choices=known, default=default, nargs="+", metavar="NAME", help=what)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--batch", type=count, default=2, metavar="N", help="samples a rank (default: 2)")
    parser.add_argument("--steps", type=count, default=4, metavar="N", help="steps after 2 to warm up (default: 4)")
    parser.add_argument("--deterministic", action="store_true", help="kernels that compute the same bits every time")
    parser.add_argument("--jobs", type=count, default=4, metavar="N", help="runs at once (default: 4)")
    options = parser.parse_args()
    if (options.folder / f"{options.ranks}-ranks").exists():
        parser.error(f"{options.folder / f'{options.ranks}-ranks'} exists; name a new folder")
    return options


if __name__ == "__main__":
    run_main(main, "nccl_on_one_gpu.py")
