"""`benchmarks/multi_gpu.sh`: the commands of every part, and two calls of it on CPU ranks in place of GPUs."""

import re
import sys

import pytest

from common.result import read_result
from compare import build_parser, workload_arguments
from comparison.matrix import choose_variants, plan
from tests.runs import ROOT, run

SCRIPT = "benchmarks/multi_gpu.sh"
CELL_PARTS = ("small-bf16", "small-fp32", "medium-bf16", "medium-fp32")
PARTS = ("medium-bf16", "strong", "attribute-fsdp2", "small-fp32", "small-bf16", "medium-fp32", "attribute-ddp")
SECONDS_A_RUN = 26
"""What a run took at most on one H200."""
ON_CPUS = {
    "PYTHON": sys.executable, "DEVICE": "cpu", "PRESET": "tiny", "CELLS": "ddp", "BATCH": "1", "REPEATS": "1",
    "WARMUP_STEPS": "1", "STEPS": "1",
}  # fmt: skip


def call(*arguments, **environ):
    return run(["bash", SCRIPT, *map(str, arguments)], timeout=300, **environ)


def commands(*parts, **environ) -> list[str]:
    """Return the command lines that a call would run."""
    printed = call("--dry-run", "results/nowhere", *parts, **environ)
    assert printed.returncode == 0, printed.stderr
    return printed.stdout.splitlines()


def matrices(*parts, **environ):
    """Return what ``compare.py run`` makes of each of its command lines."""
    runs = [line.split()[1:] for line in commands(*parts, **environ) if line.startswith("compare.py run ")]
    return [build_parser().parse_args(words) for words in runs]


def cells(*parts) -> list[tuple[str, str | None]]:
    return [(*each.strategy, each.fsdp_wrap if each.strategy == ["fsdp2"] else None) for each in matrices(*parts)]


@pytest.mark.parametrize("part", [*CELL_PARTS, "strong"])
def test_a_part_has_every_cell_in_a_folder_of_its_own(part):
    assert cells(part) == [("ddp", None), ("fsdp2", "block"), ("fsdp2", "root")]
    assert len({each.output_dir for each in matrices(part)}) == 3


@pytest.mark.parametrize("part", CELL_PARTS)
def test_a_part_is_named_for_its_preset_and_precision(part):
    assert {f"{each.preset}-{each.precision}" for each in matrices(part)} == {part}


@pytest.mark.parametrize("part", PARTS)
def test_at_the_longest_that_a_run_took_a_part_stays_below_nine_minutes(part):
    runs = 0
    for each in matrices(part, RANKS="2"):
        variants = choose_variants(each.strategy, each.precision, 2)[0] if each.attribute else {}
        runs += len(plan(each.strategy, each.repeats, [], variants=variants))
    assert 0 < runs * SECONDS_A_RUN < 9 * 60


@pytest.mark.parametrize("part", PARTS)
def test_every_cell_runs_three_times_on_gpus_under_torchrun(part):
    found = {(each.repeats, each.device, each.launcher, each.nproc_per_node) for each in matrices(part, RANKS="4")}
    assert found == {(3, "cuda", "torchrun", 4)}


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_global_batch_of_strong_scaling_fits_any_number_of_ranks(ranks):
    for each in matrices("strong", RANKS=str(ranks)):
        assert "--global-batch-size" in workload_arguments(each, each.preset, each.device, ranks)


@pytest.mark.parametrize("words", [[], ["--deterministic"]], ids=["left out", "given"])
def test_every_run_of_a_matrix_is_deterministic_if_that_was_asked_for(words):
    arguments = build_parser().parse_args(["run", *words])
    assert workload_arguments(arguments, "tiny", "cpu", 2).count("--deterministic") == len(words)


def test_on_one_rank_strong_scaling_is_the_cell_of_weak_scaling():
    weak, strong = matrices("medium-bf16", "strong")[::3]
    assert (weak.preset, weak.precision) == (strong.preset, strong.precision)
    assert weak.batch_size_per_device == strong.global_batch_size


def test_the_batch_of_a_rank_does_not_change_with_their_number():
    sizes = [[each.batch_size_per_device for each in matrices("medium-bf16", RANKS=ranks)] for ranks in ("2", "8")]
    assert sizes[0] == sizes[1] != [None] * 3


@pytest.mark.parametrize(("part", "names"), [("attribute-ddp", 3), ("attribute-fsdp2", 2)])
def test_the_attribution_has_the_broadcast_and_the_order_of_zeroing(part, names):
    (matrix,) = matrices(part)
    (variants,) = choose_variants(matrix.strategy, matrix.precision, 2)[0].values()
    assert matrix.attribute
    assert {"zero-grad after-forward", "sigterm-broadcast off"} <= {each.name for each in variants}
    assert len(variants) == names


def test_the_tables_and_the_scaling_come_last():
    shown = [line for line in commands("small-bf16", "strong") if line.startswith("compare.py show ")]
    assert [re.sub(r"\S*/results", "results", line) for line in shown] == [
        "compare.py show results/nowhere/small-bf16/2-ranks --no-responsibilities",
        "compare.py show results/nowhere/strong/2-ranks --no-responsibilities",
        "compare.py show results/nowhere --scaling",
    ]


def test_the_variables_reach_every_run():
    wanted = {"DEVICE": "cpu", "PRESET": "tiny", "BATCH": "3", "REPEATS": "1", "WARMUP_STEPS": "2", "STEPS": "4"}
    for each in matrices("small-bf16", "attribute-ddp", **wanted):
        assert (each.device, each.preset, each.batch_size_per_device) == ("cpu", "tiny", 3)
        assert (each.repeats, each.warmup_steps, each.steps) == (1, 2, 4)


def test_without_a_part_all_run_and_strong_scaling_only_with_several_ranks():
    for ranks, parts in (("2", PARTS), ("1", [part for part in PARTS if part != "strong"])):
        assert [each.output_dir.parts[-3] for each in matrices(RANKS=ranks)] == [
            part for part in parts for _ in cells(part)
        ]


def test_an_unknown_part_is_refused_with_the_known_ones_before_anything_runs(tmp_path):
    ended = call(tmp_path / "results", "small-bf16", "small-bf8", PYTHON="/nowhere/python")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert all(part in ended.stderr for part in PARTS)


def stand_in(folder, script):
    """Return an interpreter that notes its arguments in ``calls`` and then does what the script says."""
    interpreter = folder / "python"
    interpreter.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n{script}\n')
    interpreter.chmod(0o755)
    return str(interpreter)


def noted(folder) -> list[str]:
    """Return the subcommands that a stand-in was called with since the last look."""
    calls = folder / "calls"
    words = [line.split()[1] for line in calls.read_text().splitlines()] if calls.exists() else []
    calls.unlink(missing_ok=True)
    return words


def test_a_cell_that_fails_does_not_keep_the_others_from_running(tmp_path):
    ended = call(tmp_path / "results", "strong", PYTHON=stand_in(tmp_path, "exit 1"))
    assert ended.returncode == 1
    assert noted(tmp_path) == ["run"] * 3


MAKES_ITS_FOLDER = 'for last in "$@"; do :; done; [ "$2" = show ] || mkdir -p "$last"'


def test_what_does_not_fit_into_the_time_is_left_for_the_same_call_again(tmp_path):
    """A run is thought to take 26 s until the first cell has shown its pace: 6 runs fit into 160 s then, 8 don't."""
    python = stand_in(tmp_path, MAKES_ITS_FOLDER)
    environ = {"PYTHON": python, "LIMIT_SECONDS": "160"}
    first = call(tmp_path / "results", "strong", **environ, REPEATS="4")
    assert (first.returncode, noted(tmp_path)) == (75, [])
    assert first.stderr == "3 cells with 2 ranks are left: call this again with the same words\n"
    second = call(tmp_path / "results", "strong", "attribute-ddp", **environ)
    assert (second.returncode, noted(tmp_path)) == (0, ["run"] * 4 + ["show"] * 2), second.stderr
    third = call(tmp_path / "results", "strong", "small-fp32", **environ)
    assert (third.returncode, noted(tmp_path)) == (0, ["run"] * 3 + ["show"] * 2), third.stderr
    assert third.stdout.count("it has its folder already; remove that to run it again") == 3


@pytest.mark.slow
@pytest.mark.whole_matrix
def test_two_numbers_of_cpu_ranks_end_with_their_tables_and_the_scaling(tmp_path):
    first, second = (call(tmp_path, "small-fp32", RANKS=ranks, **ON_CPUS) for ranks in ("1", "2"))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "Weak scaling" not in first.stdout
    scaling = second.stdout.partition("Weak scaling: ddp, preset tiny, fp32, 1 sample a rank")[2]
    rows = [line.split()[:3] for line in scaling.splitlines() if line.startswith(("native ", "lightning "))]
    assert rows == [[side, ranks, "1"] for side in ("native", "lightning") for ranks in ("1", "2")]
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")}
    assert names == {
        f"small-fp32/{ranks}-ranks/ddp/ddp-{side}-1.json" for ranks in (1, 2) for side in ("native", "lightning")
    }


def test_the_document_names_every_part():
    text = (ROOT / "docs/h200-multi/README.md").read_text(encoding="utf-8")
    assert all(f"`{part}`" in text for part in PARTS)


@pytest.mark.slow
@pytest.mark.whole_matrix
@pytest.mark.parametrize("own_node", ["", "1"], ids=["one node", "a node each"])
def test_the_faults_end_on_cpu_ranks_in_place_of_gpus(tmp_path, own_node):
    environ = {"PYTHON": sys.executable, "DEVICE": "cpu", "PRESET": "tiny", "HALVES": "native", "STRATEGIES": "ddp",
               "FAULTS": "SIGKILL raise out-of-memory", "OWN_NODE": own_node}  # fmt: skip
    ended = run(["bash", "benchmarks/nccl_faults.sh", str(tmp_path / "faults")], timeout=300, **environ)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.findall(r"^(\S+), native ddp$", ended.stdout, re.M) == environ["FAULTS"].split()
    assert len(re.findall(r"^    ended within \d+ s, exit code 1$", ended.stdout, re.M)) == 3


@pytest.mark.slow
@pytest.mark.whole_matrix
def test_ranks_that_share_a_device_have_parity(tmp_path):
    script = [sys.executable, "benchmarks/nccl_on_one_gpu.py", str(tmp_path)]
    cells = ["--device", "cpu", "--presets", "tiny", "--precisions", "fp32", "--cells", "fsdp2-root", "--jobs", "1"]
    ended = run([*script, *cells, "--deterministic"], timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout == (
        "tiny fp32 fsdp2-root: same weights and batches at the start; all 6 losses equal to the last bit; final "
        "weights equal to the last bit; started as CPU ranks did; rank zero holds 0.5000 of the parameters\n"
    )
    ranks = read_result(tmp_path / "2-ranks/tiny/fsdp2-root-fp32-lightning.json").environment
    assert (ranks.num_nodes, ranks.nodes_share_hardware, ranks.deterministic_algorithms) == (2, True, True)


def test_the_faults_overwrite_nothing(tmp_path):
    ended = run(["bash", "benchmarks/nccl_faults.sh", str(tmp_path)], PYTHON="/nowhere/python")
    assert (ended.returncode, ended.stderr) == (2, f"{tmp_path} exists; name a new folder\n")
