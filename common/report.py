"""What global rank zero does with a finished run: the file first, then a few lines for a person."""

import re
import signal

from common.options import RunConfig
from common.result import Outcome, Result, write_result

LOST_CONNECTION = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Connection refused|Broken pipe|remote process exited", re.IGNORECASE
)
"""What gloo and NCCL say on a rank whose peer is gone."""
WAITED_IN_VAIN = re.compile(r"timed? ?out", re.IGNORECASE)
"""What they say where a peer does not answer."""


def report(config: RunConfig, result: Result) -> None:
    """Write the result where ``--output`` says, then print a summary.

    Raises:
        RunError: the file could not be written.
    """
    if config.output is not None:
        write_result(config.output, result, overwrite=config.overwrite_output)
    print(summary(result), flush=True)
    if config.output is not None:
        print(f"  result written to {config.output}", flush=True)


def summary(result: Result) -> str:
    """Return the run in a few lines."""
    workload, outcome = result.workload, result.outcome
    wrap = f" ({workload.fsdp_wrap} wrap)" if workload.fsdp_wrap else ""
    kind = f"{workload.preset}, {workload.precision_resolved}, {workload.world_size} ranks on {workload.device_type}"
    variants = "".join(f", {name}" for name in workload.variants)
    lines = [f"{result.implementation} {workload.strategy}{wrap}, {kind}{variants}"]
    if outcome.status != "completed":
        lines.append(f"  {describe_outcome(outcome)}")
    if result.timing and result.memory and result.parameters:
        allocated, fraction = result.memory.peak_allocated_gib, result.parameters.local_parameter_fraction
        lines += [
            f"  milliseconds_per_step {result.timing.milliseconds_per_step:.3f}",
            f"  tokens_per_second {result.timing.tokens_per_second:.0f}",
            f"  peak_allocated_gib {'n/a' if allocated is None else f'{allocated:.3f}'}",
            f"  local_parameter_fraction {fraction:.4f}",
        ]
    if result.correctness:
        lines.append(f"  final_loss_mean {result.correctness.final_loss_mean!r}")
    return "\n".join(lines)


def describe_failure(error: Exception, config: RunConfig) -> str:
    """Return in a few words what an exception was that is no result."""
    text = _first_line(error)
    if LOST_CONNECTION.search(text):
        return "lost another rank, which was killed (out of host memory?) or ended by itself"
    if WAITED_IN_VAIN.search(text):
        return f"waited in vain for another rank, for {config.timeout_seconds} seconds (--timeout-seconds)"
    return f"failed with {type(error).__name__}: {text}"


def describe_signal(number: signal.Signals) -> str:
    """Return in a few words why a run ends that was told to."""
    if number == signal.SIGTERM:
        return "was told to end by SIGTERM (from a person, a time limit, or its launcher after another rank had ended)"
    return f"was interrupted by {number.name}"


def follows_from_another(error: Exception) -> bool:
    """Say whether an exception is about another rank, which is gone or silent."""
    return any(pattern.search(_first_line(error)) for pattern in (LOST_CONNECTION, WAITED_IN_VAIN))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0]


def describe_outcome(outcome: Outcome) -> str:
    """Return in one line how a run ended."""
    where = f" in step {outcome.step} ({outcome.phase})" if outcome.step else f" during {outcome.phase}"
    sizes = [
        f"{verb} {size:.2f} GiB"
        for verb, size in (("asked for", outcome.requested_gib), ("free were", outcome.free_gib))
        if size is not None
    ]
    cause = ", ".join(sizes) or outcome.message or "no message"
    return f"{outcome.status}{where} on rank {outcome.rank}: {cause}"
