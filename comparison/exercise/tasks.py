"""The tasks of the workbook, in order: what is asked, what is run, and what explains it."""

from comparison.exercise import explanations, reading
from comparison.exercise.measured import (
    BLOCK,
    DDP,
    ROOT,
    Measured,
    leaf,
    memory_ratio,
    time_ratio,
)
from comparison.exercise.questions import Question, Task, choice, count, essay, factor, order
from comparison.metrics import parity

SAME = ("same", "about the same (within 10 %)")
MEMORY_CHOICES = (("more", "ddp needs less"), ("less", "fsdp2 needs less"), SAME)
TIME_CHOICES = (("more", "ddp's step takes less time"), ("less", "fsdp2's step takes less time"), SAME)
FRACTION_CHOICES = (("higher", "higher"), ("lower", "lower"), ("same", "the same"))
LOSS_CHOICES = (
    ("exact", "equal to the last bit"),
    ("close", "equal in the first digits only"),
    ("different", "different: two frameworks, two trainings"),
)


def tasks() -> tuple[Task, ...]:
    """Return all tasks in the order in which they are done."""
    return (ddp_against_fsdp2(), stored_share(), root_wrap(), lightning_costs(), *reading.tasks(), capacity())


def ddp_against_fsdp2() -> Task:
    """Tasks 1 and 2 of the hands-on: predict memory and time of both strategies, then run and compare."""
    between = (DDP, BLOCK)
    return Task(
        "1",
        "DDP against FSDP2",
        (
            "The same model is trained with ddp (every rank has all of it) and with fsdp2 (every rank stores a share "
            "and gathers one block at a time). Everything else is equal. Predict before anything is shown.",
        ),
        (
            order("1.memory", "Which strategy needs less memory on each rank at its peak?", "peak memory",
                  MEMORY_CHOICES, lambda found: memory_ratio(found.between_cells(*between))),
            factor("1.memory_factor", "fsdp2's peak memory as a multiple of ddp's? (0.5 is half, 1 is equal)",
                   "peak memory, factor", lambda found: memory_ratio(found.between_cells(*between))),
            order("1.time", "Which strategy's step takes less time, and so has the higher throughput?", "step time",
                  TIME_CHOICES, lambda found: time_ratio(found.between_cells(*between))),
            factor("1.time_factor", "fsdp2's step time as a multiple of ddp's? (2 is twice as long)",
                   "step time, factor", lambda found: time_ratio(found.between_cells(*between))),
            count("1.fraction", "Which share of the model's parameters does an fsdp2 rank store? (ddp: 1)",
                  "local_parameter_fraction", lambda found: _fraction(found, BLOCK), "fsdp2 {:.4f}"),
        ),
        explanations.ddp_against_fsdp2,
        commands=("python compare.py run --strategy ddp fsdp2",),
        cells=between,
    )  # fmt: skip


def stored_share() -> Task:
    """Task 3: explain the share of parameters that a rank stores."""
    return Task(
        "2",
        "Why a rank stores what it stores",
        ("You have seen local_parameter_fraction of both strategies.",),
        (
            essay("2.why", "In a sentence or two: why does ddp store nearly all parameters on every rank, while "
                  "fsdp2 approaches 1 / world size? What does fsdp2 do when it needs a parameter that it doesn't "
                  "store?", "why"),
        ),
        explanations.stored_share,
        cells=(DDP, BLOCK),
    )  # fmt: skip


def root_wrap() -> Task:
    """Task 4: predict and measure the deliberately poor boundary."""
    between = (BLOCK, ROOT)
    memory = (("more", "root needs more"), ("less", "root needs less"), SAME)
    time = (("more", "root's step takes longer"), ("less", "root's step takes less time"), SAME)
    return Task(
        "3",
        "The root as the only boundary",
        (
            "--fsdp-wrap root makes the whole model one unit, where block makes every block and the root one each. "
            "Predict what that does to fsdp2.",
        ),
        (
            order("3.memory", "Peak memory of root wrap against block wrap?", "peak memory", memory,
                  lambda found: memory_ratio(found.between_cells(*between))),
            order("3.time", "Step time of root wrap against block wrap?", "step time", time,
                  lambda found: time_ratio(found.between_cells(*between))),
            choice("3.fraction", "local_parameter_fraction of root wrap against block wrap?",
                   "local_parameter_fraction", FRACTION_CHOICES, _root_fraction),
        ),
        explanations.root_wrap,
        commands=("python compare.py run --strategy fsdp2 --fsdp-wrap root",),
        cells=between,
    )  # fmt: skip


def lightning_costs() -> Task:
    """Task 5, its first half: what Lightning costs."""
    time = (
        ("more", "Lightning's step takes longer"),
        ("less", "Lightning's step takes less time"),
        SAME,
    )
    memory = (("more", "Lightning needs more"), ("less", "Lightning needs less"), SAME)
    return Task(
        "4",
        "What Lightning costs",
        (
            "All those runs were made twice: in native PyTorch, and with Lightning's Trainer. Same weights, same "
            "batches, same ranks.",
        ),
        (
            choice("4.losses", "The losses of native and Lightning, step for step, are ...", "losses", LOSS_CHOICES,
                   _losses),
            order("4.time", "Lightning's step time against native's, ddp?", "step time, ddp", time,
                  lambda found: time_ratio(found.between_implementations(DDP))),
            factor("4.time_factor", "Lightning's step time as a multiple of native's, ddp?", "step time, factor",
                   lambda found: time_ratio(found.between_implementations(DDP))),
            order("4.memory", "Lightning's peak memory against native's, ddp?", "peak memory, ddp", memory,
                  lambda found: memory_ratio(found.between_implementations(DDP))),
        ),
        explanations.lightning_costs,
        commands=("python compare.py show RESULTS",),
        cells=(DDP, BLOCK),
    )  # fmt: skip


def capacity() -> Task:
    """Task 6: the largest preset that each strategy can run."""
    presets = tuple((name, name) for name in explanations.PRESETS_BY_SIZE)
    return Task(
        "6",
        "How large can it get",
        (
            "If hardware and time permit: find the largest preset that each strategy can run. Running out of memory is "
            "evidence of capacity, no throughput. Run the commands below in another terminal, put the results into "
            "this exercise's folder, and they are shown here.",
        ),
        tuple(
            Question(
                f"6.{strategy}",
                f"The largest preset that {strategy} can run on your machine?",
                f"largest, {strategy}",
                "choice",
                explanations.judge_capacity(strategy),
                presets,
            )
            for strategy in ("ddp", "fsdp2")
        ),
        explanations.capacity,
        commands=("python compare.py run --preset large --repeats 1 --output-dir RESULTS/large",),
    )


def _fraction(found: Measured | None, cell: str) -> float | None:
    return None if found is None else found.figure(leaf("local_parameter_fraction"), cell)


def _root_fraction(found: Measured | None) -> tuple[str | None, str]:
    block, root = _fraction(found, BLOCK), _fraction(found, ROOT)
    if block is None or root is None:
        return None, "not measured"
    key = "same" if root == block else "higher" if root > block else "lower"
    return key, f"root {root:.4f}, block {block:.4f}"


def _losses(found: Measured | None) -> tuple[str | None, str]:
    pairs = [found.between_implementations(cell) for cell in (DDP, BLOCK)] if found else []
    pairs = [pair.completed() for pair in pairs if pair is not None]
    judged = [parity(pair) for pair in pairs if pair.baseline and pair.other]
    if not judged:
        return None, "not measured"
    worst = max(judged, key=lambda each: each.largest_loss_difference)
    if worst.first_unequal_step is None:
        return "exact", f"all {worst.steps} losses equal to the last bit"
    return "close" if worst.largest_loss_difference < 1e-3 else "different", worst.sentence()
