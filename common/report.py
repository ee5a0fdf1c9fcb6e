"""What global rank zero does with a finished run: the file first, then a few lines for a person."""

from common.options import RunConfig
from common.result import Result, write_result


def report(config: RunConfig, result: Result | None) -> None:
    """Write the result where ``--output`` says, then print a summary. Does nothing without a result (other ranks).

    Raises:
        RunError: the file could not be written.
    """
    if result is None:
        return
    if config.output is not None:
        write_result(config.output, result, overwrite=config.overwrite_output)
    print(summary(result), flush=True)
    if config.output is not None:
        print(f"  result written to {config.output}", flush=True)


def summary(result: Result) -> str:
    """Return the run in a few lines of at most 80 columns."""
    workload, timing, correctness = result.workload, result.timing, result.correctness
    allocated, fraction = result.memory.peak_allocated_gib, result.parameters.local_parameter_fraction
    wrap = f" ({workload.fsdp_wrap} wrap)" if workload.fsdp_wrap else ""
    peak = "n/a" if allocated is None else f"{allocated:.3f}"
    kind = f"{workload.preset}, {workload.precision_resolved}, {workload.world_size} ranks on {workload.device_type}"
    return "\n".join(
        [
            f"{result.implementation} {workload.strategy}{wrap}, {kind}",
            f"  milliseconds_per_step {timing.milliseconds_per_step:.3f}",
            f"  tokens_per_second {timing.tokens_per_second:.0f}",
            f"  peak_allocated_gib {peak}",
            f"  local_parameter_fraction {fraction:.4f}",
            f"  final_loss_mean {correctness.final_loss_mean!r}",
        ]
    )
