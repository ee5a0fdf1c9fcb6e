"""The command line of both implementations, parsed into one frozen :class:`RunConfig`.

Nothing here imports torch: a wrong call is answered before anything slow begins.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from common.errors import RunError, exit_with_error
from common.presets import PRESETS, ModelConfig
from common.variants import VARIANTS

STRATEGIES = ("ddp", "fsdp2")
LAUNCHERS = ("torchrun", "srun", "srun-torchrun")
"""What ``compare.py run`` can start ranks with."""
IMPLEMENTATION_MODULES = {"native": "native", "lightning": "lightning_impl"}
MAX_SEED = 2**62
SNAPSHOT_WARMUP = 3
MAX_TIMEOUT_SECONDS = 86_400


@dataclass(frozen=True)
class RunConfig:
    """Everything a person can choose about one run. The world size is not among it: the live launcher decides that."""

    implementation: str
    """``native`` or ``lightning``."""
    strategy: str
    """``ddp`` (replicated) or ``fsdp2`` (sharded)."""
    preset: str = "small"
    """A key of :data:`common.presets.PRESETS`."""
    fsdp_wrap: str = "block"
    """``block`` (each block and the root) or ``root`` (one unit); without meaning for ddp."""
    batch_size_per_device: int | None = None
    """Samples a rank; None when the global size was given."""
    global_batch_size: int | None = None
    """Samples over all ranks; None when the size a rank was given."""
    warmup_steps: int = 5
    """Untimed optimizer steps before the window."""
    steps: int = 15
    """Timed optimizer steps."""
    precision: str = "auto"
    """``auto``, ``fp32`` or ``bf16``, as requested."""
    seed: int = 1234
    """Seed of the weights and of the batches."""
    deterministic: bool = False
    """Whether only kernels may be used that give the same bits in every run."""
    devices: int | None = None
    """Ranks a node, as claimed by the user; None takes the launcher's word."""
    num_nodes: int | None = None
    """Nodes, as claimed by the user; None takes the launcher's word."""
    device: str = "auto"
    """``auto``, ``cpu`` or ``cuda``, as requested."""
    output: Path | None = None
    """Where global rank zero writes the result, or None."""
    overwrite_output: bool = False
    """Whether an existing result may be replaced."""
    label: str | None = None
    """Free text kept in the result."""
    memory_snapshot: Path | None = None
    """Where global rank zero writes what the allocator did during two warm-up steps, or None."""
    zero_grad: str = "before-forward"
    """``before-forward`` or ``after-forward``; native only."""
    autocast_cache: str = "on"
    """``on`` or ``off``; native only."""
    sigterm_broadcast: str = "on"
    """``on`` or ``off``; lightning only."""
    timeout_seconds: int = 300
    """How long ranks wait for one another, at the start and in every collective."""
    learning_rate: float = 1e-3
    """AdamW's learning rate; not an option, both sides use this one."""

    @property
    def model(self) -> ModelConfig:
        """Dimensions of the chosen preset."""
        return PRESETS[self.preset]

    @property
    def total_steps(self) -> int:
        """Optimizer steps in all."""
        return self.warmup_steps + self.steps

    @property
    def module(self) -> str:
        """What follows ``python -m``."""
        return IMPLEMENTATION_MODULES[self.implementation]

    @property
    def variants(self) -> list[str]:
        """Names of the :data:`common.variants.VARIANTS` that were asked for."""
        return [variant.name for variant in VARIANTS if getattr(self, variant.field) == variant.values[1]]

    def local_batch_size(self, world_size: int) -> int:
        """Return the samples of each rank.

        Raises:
            RunError: ``world_size`` does not divide the global batch size.
        """
        if self.global_batch_size is None:
            return self.batch_size_per_device or 1
        if self.global_batch_size % world_size:
            below = self.global_batch_size // world_size * world_size
            multiples = " or ".join(str(size) for size in (below, below + world_size) if size)
            raise RunError(
                f"--global-batch-size {self.global_batch_size} does not divide over {world_size} ranks; "
                f"use a multiple of {world_size}, for example {multiples}"
            )
        return self.global_batch_size // world_size


class OneLineParser(argparse.ArgumentParser):
    """A parser that answers a wrong call with one line, printed once a node, and exit code 2."""

    def error(self, message: str) -> NoReturn:
        exit_with_error(self.prog, RunError(f"{message} (see {self.prog} --help)"))


def integer_of_at_least(minimum: int, maximum: int | None = None, why: str = ""):
    """Return an argparse type for whole numbers from ``minimum`` to ``maximum``."""
    bounds = (
        f"a whole number of at least {minimum}" if maximum is None else f"a whole number from {minimum} to {maximum}"
    )

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {bounds}") from None
        if value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"{text!r} is not {bounds}{why}")
        return value

    return parse


def add_workload_options(parser: argparse.ArgumentParser, *, default_preset: str | None = "small") -> None:
    """Add the options that say what is trained: the ones which must be equal on both sides of a comparison."""
    model = parser.add_argument_group("model and sharding")
    model.add_argument(
        "--preset",
        choices=PRESETS,
        default=default_preset,
        metavar="{" + ",".join(PRESETS) + "}",
        help=f"model dimensions (default: {default_preset or 'small on GPUs, tiny on CPUs'})",
    )
    model.add_argument(
        "--fsdp-wrap",
        choices=("block", "root"),
        default="block",
        help="shard every block and the root, or the root alone; ignored for ddp (default: block)",
    )
    batch = parser.add_argument_group("batch and steps")
    sizes = batch.add_mutually_exclusive_group()
    sizes.add_argument(
        "--batch-size-per-device",
        type=integer_of_at_least(1),
        metavar="N",
        help="samples of each rank: weak scaling (default: 1)",
    )
    sizes.add_argument(
        "--global-batch-size",
        type=integer_of_at_least(1),
        metavar="N",
        help="instead: samples over all ranks, divisible by their number: strong scaling",
    )
    why = ": the first step allocates optimizer state and must not be timed"
    batch.add_argument(
        "--warmup-steps",
        type=integer_of_at_least(1, why=why),
        default=5,
        metavar="N",
        help="untimed optimizer steps before the window (default: 5)",
    )
    batch.add_argument(
        "--steps", type=integer_of_at_least(1), default=15, metavar="N", help="timed optimizer steps (default: 15)"
    )
    numerics = parser.add_argument_group("numerics")
    numerics.add_argument(
        "--precision",
        choices=("auto", "fp32", "bf16"),
        default="auto",
        help="auto takes bf16 where the GPU computes it natively, else fp32 (default: auto)",
    )
    numerics.add_argument(
        "--seed",
        type=integer_of_at_least(0, MAX_SEED),
        default=1234,
        metavar="N",
        help="seed of the weights and of every batch (default: 1234)",
    )
    numerics.add_argument(
        "--deterministic",
        action="store_true",
        help="use only kernels that give the same bits in every run; on a GPU some are slower",
    )


def add_timeout_option(parser: argparse._ActionsContainer) -> None:
    """Add the option that bounds every wait of a rank for another."""
    parser.add_argument(
        "--timeout-seconds",
        type=integer_of_at_least(1, MAX_TIMEOUT_SECONDS),
        default=300,
        metavar="N",
        help="how long ranks wait for one another, at the start and in every collective (default: 300)",
    )


def build_parser(implementation: str) -> OneLineParser:
    """Return the parser of ``python -m native`` or ``python -m lightning_impl``: the same options for both."""
    module = IMPLEMENTATION_MODULES[implementation]
    parser = OneLineParser(
        prog=f"python -m {module}",
        usage="%(prog)s --strategy {ddp,fsdp2} [options]",
        allow_abbrev=False,
        description=f"Train the synthetic transformer with the {implementation} implementation and measure it.",
        epilog=f"example: torchrun --standalone --nproc-per-node=2 -m {module} --strategy fsdp2 --preset tiny",
    )
    strategy = parser.add_argument_group("strategy")
    strategy.add_argument(
        "--strategy", choices=STRATEGIES, required=True, help="ddp replicates the model, fsdp2 shards it"
    )
    add_workload_options(parser)
    switches = parser.add_argument_group("choices of a framework, to switch and see their price")
    for variant in VARIANTS:
        switches.add_argument(
            f"--{variant.option}",
            choices=variant.values,
            default=argparse.SUPPRESS,  # whether it was given matters: only one side has it
            help=f"{variant.values[1]}: {variant.help}; python -m {IMPLEMENTATION_MODULES[variant.implementation]} "
            f"only (default: {variant.values[0]})",
        )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto takes CUDA where there is a GPU (default: auto)",
    )
    where.add_argument(
        "--devices",
        type=integer_of_at_least(1),
        metavar="N",
        help="ranks a node; must agree with the launcher (default: the launcher's number)",
    )
    where.add_argument(
        "--num-nodes",
        type=integer_of_at_least(1),
        metavar="N",
        help="nodes; must agree with the launcher (default: the launcher's number)",
    )
    add_timeout_option(where)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output", type=Path, metavar="PATH", help="write the result of the run there as JSON, by rank zero"
    )
    output.add_argument("--overwrite-output", action="store_true", help="permit replacing an existing result")
    output.add_argument("--label", metavar="TEXT", help="free text kept in the result")
    output.add_argument(
        "--memory-snapshot",
        type=Path,
        metavar="PATH",
        help="write what PyTorch's CUDA allocator did during the last two warm-up steps, for the viewer at "
        "pytorch.org/memory_viz (rank zero; CUDA only)",
    )
    return parser


def parse_options(implementation: str, argv: Sequence[str] | None = None) -> RunConfig:
    """Parse a command line (without the program's name; default: this process's own).

    A wrong one prints a single line and ends the process with exit code 2.
    """
    parser = build_parser(implementation)
    options = vars(parser.parse_args(argv))
    for variant in VARIANTS:
        if variant.field in options and variant.implementation != implementation:
            owner = IMPLEMENTATION_MODULES[variant.implementation]
            parser.error(f"--{variant.option} is an option of python -m {owner} only: {variant.elsewhere}")
    return RunConfig(implementation=implementation, **options)


def check_output(config: RunConfig, rank: int) -> None:
    """Find out before training whether the files of the run can be written.

    Rank zero tries the folder for real; the other ranks, which may see another file system, only look for a file that
    rank zero would refuse to replace, so that all of them end.

    Raises:
        RunError: a file exists and may not be replaced, or cannot be written.
    """
    if config.memory_snapshot is not None and config.warmup_steps < SNAPSHOT_WARMUP:
        raise RunError(
            "--memory-snapshot records two warm-up steps after the first, but --warmup-steps is "
            f"{config.warmup_steps}; use --warmup-steps {SNAPSHOT_WARMUP} or more"
        )
    for option, path in (("--output", config.output), ("--memory-snapshot", config.memory_snapshot)):
        if path is None:
            continue
        try:
            _check_output_file(option, path, config.overwrite_output)
            if rank == 0:
                _check_output_folder(option, path)
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links, before Python 3.13
            reason = getattr(error, "strerror", None) or "a loop of symbolic links"
            raise RunError(f"{option} {path} cannot be written ({reason}); choose a folder you may write to") from None


def _check_output_file(option: str, path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise RunError(f"{option} {path} is a folder; name a file in it, for example {option} {path / 'result.json'}")
    if path.exists() and not path.is_file():
        raise RunError(f"{option} {path} is no regular file and would be replaced by one; name another file")
    if path.exists() and not overwrite:
        raise RunError(f"{option} {path} exists; name another file or add --overwrite-output")


def _check_output_folder(option: str, path: Path) -> None:
    folder = path.resolve().parent
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{option} {path}: {folder} is a file, not a folder; choose another folder")
    if not folder.is_dir():
        raise RunError(f"{option} {path}: the folder {folder} does not exist; create it with: mkdir -p {folder}")
    probe = folder / f".{path.name}.{os.getpid()}.probe"
    probe.touch(exist_ok=False)
    probe.unlink()
