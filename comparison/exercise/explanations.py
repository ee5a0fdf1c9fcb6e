"""What explains a difference, with the figures of the results at hand."""

from collections.abc import Callable
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.presets import PRESETS
from common.report import describe_outcome
from common.result import StepCounts
from comparison.exercise.answers import Mark
from comparison.exercise.measured import (
    BLOCK,
    CELLS,
    DDP,
    IMPLEMENTATIONS,
    ROOT,
    Measured,
    leaf,
    memory_ratio,
    model_state_gib,
)
from comparison.formatting import (
    CPU_CAVEAT,
    OVERVIEW,
    counted,
    describe_difference,
    format_value,
    plain,
    shown_rows,
    verdict_sentence,
)
from comparison.metrics import parity, rows, verdict
from comparison.pairing import Pair

PRESETS_BY_SIZE = tuple(sorted(PRESETS, key=lambda name: PRESETS[name].blocks))
DIVIDED = 0.95
"""Share of ddp's model state up to which fsdp2 has divided it."""
SETTLED = 3
"""First step of ddp in which nothing but gradients is communicated."""
NO_RESULTS = "There are no results of these runs yet; the command above makes them."


def say(console: Console, text: str) -> None:
    """Print a paragraph and an empty line."""
    console.print(Text(plain(text), overflow="fold"))
    console.print()


def ddp_against_fsdp2(console: Console, found: Measured | None) -> None:
    """Explain memory and time of ddp against fsdp2 with block wrap."""
    if found is None or found.lacks((DDP, BLOCK)) == [DDP, BLOCK]:
        return say(console, NO_RESULTS)
    _figures(console, found, (DDP, BLOCK))
    _explain_memory(console, found)
    blocks = found.workload.model.blocks
    text = (
        f"Time: ddp averages gradients once a step, in an all-reduce for each bucket of them. fsdp2 gathers the "
        f"parameters of each of its {blocks} blocks for the forward and once more for the backward, and those of the "
        f"root once: {2 * blocks + 1} all-gathers and {blocks + 1} reduce-scatters a step."
    )
    say(console, f"{text} {_collectives(found, (DDP, BLOCK))}".strip())
    _times(console, found, [found.between_cells(DDP, BLOCK, name) for name in IMPLEMENTATIONS])
    return None


def _explain_memory(console: Console, found: Measured) -> None:
    states = [found.figure(model_state_gib, cell) for cell in (DDP, BLOCK)]
    if None in states or states[0] == 0:
        return None
    name = found.implementation(DDP, BLOCK)
    ranks = found.workload.world_size
    share = states[1] / states[0]
    text = (
        f"Memory ({name}): parameters, gradients and AdamW's two moments take {_gib(states[0])} on a ddp rank and "
        f"{_gib(states[1])} on an fsdp2 rank, {share:.2f} times as much on {counted(ranks, 'rank')}"
    )
    if ranks == 1:
        return say(console, f"{text}: over one rank there is nothing to divide. Use two or more to see it.")
    if share > DIVIDED:
        return say(console, f"{text}. That is not what sharding does: look at how these runs were made.")
    text += ": fsdp2 divides this part among the ranks."
    peaks = [found.figure(leaf("peak_allocated_gib"), cell) for cell in (DDP, BLOCK)]
    rest = [found.figure(leaf("activations_and_temporary_gib"), cell) for cell in (DDP, BLOCK)]
    if None in rest or None in peaks:
        text += (
            " The peak would add activations and temporary tensors, which are not divided, so its ratio is usually "
            "nearer to 1. A CPU has no allocator that counts them: your prediction stays open, and this is as far as "
            "the evidence goes."
        )
    else:
        text += (
            f" The rest of the peak, activations and temporary tensors, is {_gib(rest[0])} and {_gib(rest[1])}: it is "
            "not divided, and fsdp2 has the block there that it has gathered. So the peak is "
            f"{peaks[1] / peaks[0]:.2f} times ddp's, not 1 / {ranks}."
        )
    return say(console, text)


def stored_share(console: Console, found: Measured | None) -> None:
    """Explain what a rank stores."""
    say(
        console,
        "Each ddp rank runs forward and backward through the whole model on its own, and only the gradients are "
        "averaged; so it needs, and keeps, every parameter. fsdp2 cuts each parameter by rows over the ranks. Right "
        "before a block computes, all ranks gather its full parameters; right after, they let go of what isn't theirs. "
        "In the backward they do so again, and reduce-scatter the gradients, so that a rank only gets those of its own "
        "rows and only has to keep the optimizer's state for these.",
    )
    if found is None or found.lacks((DDP, BLOCK)):
        return
    total, ranks = found.workload.global_parameter_count, found.workload.world_size
    lines = []
    for cell in (DDP, BLOCK):
        most = found.figure(leaf("local_parameter_elements"), cell)
        least = found.figure(lambda result: result.parameters and result.parameters.local_parameter_elements_min, cell)
        if most is None or total is None:
            return
        share = "" if most == least else f" (the smallest share: {least:,.0f})"
        lines.append(f"{cell}: {most:,.0f} of {total:,} elements, {most / total:.4f}{share}")
    say(
        console,
        f"In your run on {counted(ranks, 'rank')}, where 1 / world size is {1 / ranks:.4f}: {'; '.join(lines)}.",
    )
    say(
        console,
        "local_parameter_fraction counts parameters alone: no gradients, no optimizer state, no activations and no "
        "buffers for communication. FSDP2 pads by rows, so shares may differ a little.",
    )


def root_wrap(console: Console, found: Measured | None) -> None:
    """Explain root wrap against block wrap."""
    if found is None or found.lacks((BLOCK, ROOT)) == [BLOCK, ROOT]:
        return say(console, NO_RESULTS)
    _figures(console, found, (BLOCK, ROOT))
    blocks, total = found.workload.model.blocks, found.workload.global_parameter_count or 0
    say(
        console,
        f"With root wrap the whole model is one unit: all {total:,} parameters are gathered before the first block "
        "computes, and stay until the backward is through. With block wrap at most a few blocks are whole at any "
        "moment. What a rank stores between steps is the same: the boundary decides about what is gathered, not about "
        "what is kept.",
    )
    text = (
        f"Root wrap needs one all-gather and one reduce-scatter a step instead of {2 * blocks + 1} and {blocks + 1}, "
        "but nothing can be computed meanwhile. Block wrap can gather the next block while one computes. With a small "
        "model the number of calls may matter more, with a large one the waiting."
    )
    say(console, f"{text} {_collectives(found, (BLOCK, ROOT))}".strip())
    if memory_ratio(found.between_cells(BLOCK, ROOT)).estimate is None:
        say(console, "What is gathered shows in the peak alone, which these runs didn't measure or can't decide about.")
    _times(console, found, [found.between_cells(BLOCK, ROOT, name) for name in IMPLEMENTATIONS])
    return None


def lightning_costs(console: Console, found: Measured | None) -> None:
    """Explain native against Lightning."""
    cells = [cell for cell in CELLS if found and found.between_implementations(cell)]
    if found is None or not cells:
        return say(console, NO_RESULTS)
    pairs = {cell: found.between_implementations(cell) for cell in cells}
    for cell, pair in pairs.items():
        completed = pair.completed()
        if completed.baseline and completed.other:
            say(console, f"{cell}: {parity(completed).sentence()}.")
    judged = [parity(pair.completed()) for pair in pairs.values() if shown_rows(pair)]
    if judged and all(each.exact for each in judged):
        say(console, "So whatever differs in time or memory is the framework, and no other computation.")
    for cell, pair in pairs.items():
        say(console, f"{cell}, time: {verdict_sentence(pair)}.{_share_of_step(pair)}")
    text = (
        "What Lightning does in every step that native doesn't: with more than one rank, rank 0's SIGTERM flag goes to "
        "all, and .item() makes the host wait for it; the loader is asked for a batch; hooks and callbacks are called, "
        "most of them empty; the loss is copied."
    )
    say(console, f"{text} {_others(found)}".strip())
    peaks = {cell: memory_ratio(pair).grounds for cell, pair in pairs.items()}
    for cell, grounds in peaks.items():
        say(console, f"{cell}, peak memory: {grounds}.")
    findings = [
        describe_difference(pair, each)
        for pair in pairs.values()
        for each in pair.findings()
        if each.field == "zero_grad"
    ]
    if findings:
        say(
            console,
            f"{findings[0]}. Lightning zeroes the gradients after the forward, so those of the last step are still "
            "there while activations pile up.",
        )
    return None


def _share_of_step(pair: Pair) -> str:
    """Return how large the difference is within a step, if the runs allow to say so."""
    found = verdict(pair)
    if found.obstacle or found.difference is None or found.ratio is None or found.ratio.contains(1.0):
        return ""
    per_step = median(found.baseline)
    return (
        f" That is {abs(found.difference.value):.2g} ms of a step of {per_step:.3g} ms; the same milliseconds would be "
        "a smaller share of a longer step."
    )


def judge_capacity(strategy: str) -> Callable[[str | float | None, Measured | None], tuple[str, Mark | None]]:
    """Return the judge of a strategy's largest preset: a prediction that the runs never tried stays open."""

    def judge(value: str | float | None, found: Measured | None) -> tuple[str, Mark | None]:
        ran, failed = _presets(found, strategy)
        if found is None or not (ran or failed):
            return "not measured", None if value is None else "open"
        words = f"ran {ran[-1]}" if ran else "ran none"
        words += f"; {failed[0]} ran out of memory" if failed else "; nothing ran out of memory"
        if value is None:
            return words, None
        size = PRESETS_BY_SIZE.index
        if ran and size(value) < size(ran[-1]):
            return words, "differs"
        if failed and size(value) >= size(failed[0]):
            return words, "differs"
        next_one = PRESETS_BY_SIZE[size(value) + 1] if size(value) + 1 < len(PRESETS_BY_SIZE) else None
        return words, "fits" if value in ran and next_one in (None, *failed) else "open"

    return judge


def _presets(found: Measured | None, strategy: str) -> tuple[list[str], list[str]]:
    """Return the presets that a strategy completed, and those that ran out of memory, by size."""
    runs = [run for run in (found.all_runs if found else ()) if run.result.workload.strategy == strategy]
    ran = {run.result.workload.preset for run in runs if run.completed}
    failed = {run.result.workload.preset for run in runs if run.result.outcome.status == "out_of_memory"} - ran
    return [name for name in PRESETS_BY_SIZE if name in ran], [name for name in PRESETS_BY_SIZE if name in failed]


def capacity(console: Console, found: Measured | None) -> None:
    """Explain what limits the size of a model."""
    say(
        console,
        "ddp keeps all parameters, gradients and both of AdamW's moments on every rank: 16 bytes a parameter in fp32, "
        "so 1.32 GiB for small, 4.57 for medium and 9.46 for large, before any activation. fsdp2 divides that by the "
        "number of ranks.",
    )
    if found is None:
        return
    if found.workload.device_type == "cpu":
        say(
            console,
            "Your runs were on a CPU, whose memory is the machine's: a run that needs too much is killed or makes the "
            "machine swap, which isn't the evidence that this task is about. Try it on GPUs.",
        )
    for run in found.all_runs:
        if run.result.outcome.status == "out_of_memory":
            workload = run.result.workload
            kind = f"{run.result.implementation} {workload.strategy}, {workload.preset}"
            say(console, f"{kind}: {describe_outcome(run.result.outcome)}.")


def _figures(console: Console, found: Measured, cells: tuple[str, ...]) -> None:
    """Print the four leaves that the hands-on names, of every cell."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for number, label in enumerate(("", *(metric.name.replace("_", " ") for metric in OVERVIEW))):
        table.add_column(label, justify="right" if number else "left", overflow="fold")
    for cell in cells:
        for name in IMPLEMENTATIONS:
            side = tuple(run for run in found.side(cell, name) if run.completed)
            if side:
                by_name = {row.metric.name: row for row in rows(Pair(side, side))}
                values = [format_value(by_name[each.name], by_name[each.name].baseline) for each in OVERVIEW]
                table.add_row(Text(f"{name} {cell}"), *map(Text, values))
    console.print(table)
    console.print()


def _times(console: Console, found: Measured, pairs: list[Pair]) -> None:
    for name, pair in zip(IMPLEMENTATIONS, pairs, strict=True):
        if pair.baseline and pair.other:
            say(console, f"{name}: {verdict_sentence(pair)}.")
    if found.workload.device_type == "cpu":
        say(console, CPU_CAVEAT)


def _collectives(found: Measured, cells: tuple[str, ...]) -> str:
    """Return the collectives that were seen in one step, if these results hold such evidence."""
    steps = {cell: _step(found, cell, found.implementation(*cells)) for cell in cells}
    told = [
        f"{cell} {_counts(step.collectives_of_strategy)} (step {step.step})" for cell, step in steps.items() if step
    ]
    settling = any(step and step.ddp_buckets is not None and step.step < SETTLED for step in steps.values())
    note = " DDP settles its buckets in its first two steps, and tells all ranks by broadcasts." if settling else ""
    return f"Seen in one step of your runs: {'; '.join(told)}.{note}" if told else ""


def _others(found: Measured) -> str:
    """Return what both implementations were seen doing besides the strategy's collectives in one step of ddp."""
    steps = {name: _step(found, DDP, name) for name in IMPLEMENTATIONS}
    told = [
        f"{name} {_counts(step.collectives_of_others)}, {counted(step.host_syncs, 'host sync')}"
        for name, step in steps.items()
        if step
    ]
    return f"Seen in one step of ddp besides the gradients' all-reduce: {'; '.join(told)}." if told else ""


def _step(found: Measured, cell: str, implementation: str) -> StepCounts | None:
    """Return what was counted in one step of the first run that has such counts."""
    watched = [run.result.responsibilities for run in found.side(cell, implementation)]
    return next((each.step for each in watched if each is not None and each.step.step is not None), None)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {kind.replace('_', '-')}" for kind, number in counts.items()) or "no collective"


def _gib(value: float) -> str:
    return f"{value:.3g} GiB"
