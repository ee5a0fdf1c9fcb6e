"""What measuring costs: the native half's training step with its instruments, against a bare loop of the same work.

    python benchmarks/instrument_cost.py                      # tiny and small on a CPU, small and medium on a GPU
    python benchmarks/instrument_cost.py --preset medium --strategy fsdp2 --blocks 200

One process, a world of one, and one model, optimizer and batch for both. Within the window of one recorder, blocks of
steps take turns: measured, bare, bare, measured, and so on. The edges of all blocks are alike: synchronise, read the
clock. A pair of neighbouring blocks is one replicate, so that a drift of the machine hits both sides of every ratio.

Exit code 1 unless the 95 % interval of the ratio contains 1.00 and ends below 1.02, for every preset. By chance alone
the interval misses 1.00 in one of twenty runs.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.data import Batch, make_batch
from common.environment import choose_device, cpu_model, limit_cpu_threads
from common.errors import run_main
from common.launch import Launch
from common.options import STRATEGIES, OneLineParser, RunConfig, integer_of_at_least
from common.precision import Precision, resolve_precision
from common.presets import PRESETS
from common.recorder import RunRecorder
from common.timing import synchronize
from comparison.statistics import Estimate, ratio_of_means
from native.parallelize import build_model, replicate
from native.process_group import bind_device, destroy_process_group, init_process_group
from native.train import training_step

LIMIT = 1.02
"""The upper end of the interval must be below."""
PRESETS_OF_DEVICE = {"cpu": ["tiny", "small"], "cuda": ["small", "medium"]}
SECONDS = {"cpu": 300.0, "cuda": 200.0}
"""Time for all presets together, unless --blocks says how many; building the models comes on top."""
HALF_WIDTH = 0.006
"""Relative half-width at which an interval is narrow enough, and no more blocks are needed; looked at now and then."""
PAIRS_BETWEEN_LOOKS = 31
"""Odd, so that neither loop is always the first after a look at the interval, which leaves threads and caches cold."""
STEPS_OF_DEVICE = {"cpu": 1, "cuda": 2}
"""Steps a block. As few as possible, so that neighbouring blocks see the same machine; but on a GPU the edges of a
block wait for the device: were every step a block of its own, an instrument that does so too would not be seen."""
WARMUP_STEPS = 2


@dataclass(frozen=True)
class Measurement:
    """The seconds a step of every block, pair by pair."""

    measured: list[float]
    bare: list[float]
    steps: int
    """Steps a block."""

    def ratio(self) -> Estimate | None:
        """Return measured over bare, with the interval over pairs; None with fewer than two pairs."""
        pairs = zip(self.measured, self.bare, strict=True)
        # Against a side without any variance, Welch's interval is Student's for paired values.
        return ratio_of_means([1.0] * len(self.bare), [measured / bare for measured, bare in pairs])


def main() -> int:
    """Print a line a preset; return 1 unless all of them pass."""
    options = parse_options()
    launch = Launch("none", 0, 0, world_size=1, local_world_size=1, master_addr="127.0.0.1", master_port=0)
    config = RunConfig("native", options.strategy, device=options.device)
    limit_cpu_threads(launch)
    device = choose_device(config, launch)
    precision = resolve_precision(config.precision, device)
    presets = options.preset or PRESETS_OF_DEVICE[device.type]
    steps = options.steps or STEPS_OF_DEVICE[device.type]

    bind_device(device)
    init_process_group(config, launch, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
    print(f"{options.strategy}, {precision.resolved}, world of one on {name}; {torch.get_num_threads()} CPU threads; "
          f"torch {torch.__version__}", flush=True)  # fmt: skip
    seconds_left, passed = SECONDS[device.type], []
    for number, preset in enumerate(presets):
        config = RunConfig("native", options.strategy, preset, device=options.device, warmup_steps=WARMUP_STEPS,
                           steps=sys.maxsize)  # fmt: skip
        limit = Limit(options.blocks, seconds_left / (len(presets) - number))
        started = time.perf_counter()
        measurement = compare(config, launch, device, precision, limit, steps)
        seconds_left -= time.perf_counter() - started
        passed.append(report(preset, measurement))
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    destroy_process_group(device)
    return 0 if all(passed) else 1


def parse_options() -> argparse.Namespace:
    """Parse the command line; a wrong one ends with exit code 2."""
    parser = OneLineParser(prog="instrument_cost.py", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    parser.add_argument("--preset", nargs="+", choices=PRESETS, metavar="{" + ",".join(PRESETS) + "}",
                        help="one or several (default: tiny small on a CPU, small medium on a GPU)")  # fmt: skip
    parser.add_argument("--strategy", choices=STRATEGIES, default="ddp", help="default: ddp")
    parser.add_argument("--blocks", type=integer_of_at_least(2), metavar="N",
                        help="blocks of each kind and preset (default: until the interval is narrow or time is up, "
                        f"{SECONDS['cpu']:g} s on a CPU and {SECONDS['cuda']:g} s on a GPU)")  # fmt: skip
    parser.add_argument("--steps", type=integer_of_at_least(1), metavar="N",
                        help=f"steps a block (default: {STEPS_OF_DEVICE['cpu']} on a CPU, "
                        f"{STEPS_OF_DEVICE['cuda']} on a GPU)")  # fmt: skip
    return parser.parse_args()


@dataclass(frozen=True)
class Limit:
    """When there are enough pairs of blocks: by number, or by the width of the interval and the clock."""

    blocks: int | None
    seconds: float

    def reached(self, measurement: Measurement, since: float) -> bool:
        """Decide; where the interval lies has no say."""
        pairs = len(measurement.bare)
        if self.blocks is not None:
            return pairs == self.blocks
        if pairs and pairs % PAIRS_BETWEEN_LOOKS == 0:
            ratio = measurement.ratio()
            if ratio.high / ratio.low < (1 + HALF_WIDTH) ** 2:
                return True
        return pairs >= 2 and time.perf_counter() - since > self.seconds


def compare(
    config: RunConfig, launch: Launch, device: torch.device, precision: Precision, limit: Limit, steps: int
) -> Measurement:
    """Train as ``native.train.train`` does, with the instruments in every other block of the window alone."""
    recorder = RunRecorder(config, launch, device, precision)
    recorder.begin()
    model = build_model(config, launch, device, precision)
    wrapped = replicate(model, device) if config.strategy == "ddp" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    batch = make_batch(config.model, config.seed, launch.rank, config.local_batch_size(launch.world_size)).to(device)
    autocast = torch.autocast(
        device.type, torch.bfloat16, enabled=config.strategy == "ddp" and precision.resolved == "bf16"
    )

    def measured_steps(count: int) -> None:
        for _ in range(count):
            loss = training_step(wrapped, optimizer, batch, autocast, recorder)
            recorder.after_step(loss)

    def bare_steps(count: int) -> None:
        for _ in range(count):
            _loss = bare_step(wrapped, optimizer, batch, autocast)  # lives as long as the other loop's

    recorder.before_training(model, wrapped, optimizer, batch)
    wrapped.train()
    measured_steps(WARMUP_STEPS)  # the last of them opens the window
    measurement = Measurement([], [], steps)
    loops = [(measured_steps, measurement.measured), (bare_steps, measurement.bare)]
    started = time.perf_counter()
    while not limit.reached(measurement, started):
        if len(measurement.bare) % PAIRS_BETWEEN_LOOKS == 0:
            bare_steps(steps)  # not counted: it warms up what the look left cold
        for loop, times in loops:
            times.append(block(loop, steps, device))
        loops.reverse()
        # A run keeps a few dozen losses and marks, not the thousands of this window for the garbage collector to walk.
        recorder.losses.clear()
        recorder.timer.marks.clear()
    return measurement


def block(loop: Callable[[int], None], steps: int, device: torch.device) -> float:
    """Return the seconds a step of one block."""
    synchronize(device)
    started = time.perf_counter()
    loop(steps)
    synchronize(device)
    return (time.perf_counter() - started) / steps


def bare_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, autocast: torch.autocast) -> Tensor:
    """Do what ``native.train.training_step`` does, and nothing else."""
    optimizer.zero_grad()
    with autocast:
        logits = model(batch.tokens)
        loss = F.cross_entropy(logits.float(), batch.labels)
    loss.backward()
    optimizer.step()
    return loss


def report(preset: str, measurement: Measurement) -> bool:
    """Print what was found and say whether it passes."""
    bare, measured = (statistics.median(times) * 1e3 for times in (measurement.bare, measurement.measured))
    ratio = measurement.ratio()
    blocks = f"{len(measurement.bare)} blocks each, steps in a block: {measurement.steps}"
    print(f"{preset}: bare {bare:.4g}, measured {measured:.4g} ms a step (medians of {blocks})")
    interval = f"95 % interval {ratio.low:.4f} to {ratio.high:.4f}"
    print(f"{preset}: ratio {ratio.value:.4f}, {interval}: {judge(ratio)}", flush=True)
    return ratio.contains(1.0) and ratio.high < LIMIT


def judge(ratio: Estimate) -> str:
    """Return what an interval says, in words."""
    if ratio.high < 1.0:
        return "FAILED, the bare loop took longer"
    if ratio.low > 1.0:
        return "FAILED, measuring takes time"
    if ratio.high >= LIMIT:
        return f"FAILED, too wide to exclude {LIMIT}; use a quieter machine or more --blocks"
    return f"ok, it contains 1 and ends below {LIMIT}"


if __name__ == "__main__":
    run_main(main, "instrument_cost.py")
