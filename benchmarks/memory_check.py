"""Whether the memory numbers are right, on one GPU: against the allocator, a known allocation and a full device.

    python benchmarks/memory_check.py results/memory-check

For both halves and both strategies (medium, bf16, world of one):
- the resident state counted from live tensors is what the allocator holds at the end of the window, within 2 %;
- a wrapper that allocates and frees 8 GiB before the run, more than it needs, is in the peaks of the set-up and not in
  those of the window;
- a batch that cannot fit ends as the outcome out_of_memory.
Exit code 1 if any of it does not hold.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from common.report import describe_outcome  # noqa: E402
from common.result import Result, read_result  # noqa: E402

HELD_GIB = 8.0
CELLS = ("native-ddp", "lightning_impl-ddp", "native-fsdp2", "lightning_impl-fsdp2")
WRAPPER = """
import runpy, sys, torch
held = torch.empty(2**31, dtype=torch.float32, device="cuda")  # 8 GiB
del held, sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def run(module: str, strategy: str, output: Path, *options: str, wrapper: Path | None = None) -> Result:
    """Run one cell, perhaps inside the wrapper, and return its result."""
    start = [str(wrapper), module] if wrapper else ["-m", module]
    command = [sys.executable, *start, "--strategy", strategy, "--preset", "medium", "--precision", "bf16"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run(
        [*command, "--output", str(output), *options],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if not output.exists():
        sys.exit(f"{module} {strategy} left no result:\n{ended.stderr[-2000:]}")
    return read_result(output)


def main() -> int:
    """Run all checks and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="new folder for the results")
    parser.add_argument(
        "--cells", nargs="+", choices=CELLS, default=CELLS, metavar="CELL", help=f"default: {' '.join(CELLS)}"
    )
    parser.add_argument("--too-large", default="2048", metavar="N", help="batch that cannot fit (default: 2048)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True)
    cells = [cell.split("-") for cell in arguments.cells]
    wrapper = Path(tempfile.mkdtemp()) / "wrapper.py"
    wrapper.write_text(WRAPPER)
    failures = 0

    def check(holds: bool, text: str) -> None:
        nonlocal failures
        failures += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {text}", flush=True)

    for module, strategy in cells:
        name = f"{module} {strategy}"
        memory = run(module, strategy, arguments.folder / f"{strategy}-{module}.json").memory
        parts = (memory.parameters_gib, memory.gradients_gib, memory.optimizer_state_gib, memory.buffers_gib)
        apart = abs(sum(parts) - memory.end_allocated_gib) / memory.end_allocated_gib
        check(
            apart < 0.02, f"{name}: resident {sum(parts):.4f}, allocated at the end {memory.end_allocated_gib:.4f} GiB"
        )
        total = sum(parts) + memory.activations_and_temporary_gib
        check(abs(total - memory.peak_allocated_gib) < 1e-6, f"{name}: breakdown adds up to {total:.4f} GiB, the peak")
        print(f"     {name}: device used {memory.device_used_gib:.2f}, peak reserve {memory.peak_reserved_gib:.2f} GiB")

        held = run(module, strategy, arguments.folder / f"{strategy}-{module}-held.json", wrapper=wrapper).memory
        check(held.setup_peak_allocated_gib >= HELD_GIB and held.setup_peak_reserved_gib >= HELD_GIB,
              f"{name}, 8 GiB before: set-up peaks {held.setup_peak_allocated_gib:.4f} allocated, "
              f"{held.setup_peak_reserved_gib:.4f} reserved")  # fmt: skip
        same = abs(held.peak_allocated_gib - memory.peak_allocated_gib) < 0.01 * memory.peak_allocated_gib
        check(
            same, f"{name}, 8 GiB before: window peak {held.peak_allocated_gib:.4f} as {memory.peak_allocated_gib:.4f}"
        )
        same = abs(held.peak_reserved_gib - memory.peak_reserved_gib) < 0.05 * memory.peak_reserved_gib
        check(
            same, f"{name}, 8 GiB before: window reserve {held.peak_reserved_gib:.4f} as {memory.peak_reserved_gib:.4f}"
        )

    for module, strategy in cells:
        output = arguments.folder / f"{strategy}-{module}-full.json"
        outcome = run(module, strategy, output, "--batch-size-per-device", arguments.too_large).outcome
        check(outcome.status == "out_of_memory", f"{module} {strategy}, batch {arguments.too_large}: "
              f"{describe_outcome(outcome) if outcome.status != 'completed' else 'completed'}")  # fmt: skip
    print(f"{failures} checks failed" if failures else "all checks hold")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
