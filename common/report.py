"""What global rank zero does with a finished run: the file first, then a few lines for a person."""

from common.options import RunConfig
from common.result import Outcome, Result, write_result


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
