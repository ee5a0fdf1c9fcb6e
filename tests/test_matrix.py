"""The matrix runner: order, failures, and what an interruption leaves behind."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

import compare
from common.variants import AUTOCAST_CACHE, SIGTERM_BROADCAST, VARIANTS, ZERO_GRAD
from comparison.matrix import (
    FinishedRun,
    PlannedRun,
    choose_variants,
    descendants,
    end_process_tree,
    is_running,
    plan,
)
from comparison.progress import describe, run_all
from tests.factories import OUT_OF_MEMORY, save
from tests.marks import mostly

PROJECT = Path(compare.__file__).parent


def compare_run(*arguments, **kwargs):
    command = [sys.executable, "compare.py", "run", "--device", "cpu", *map(str, arguments)]
    return subprocess.Popen(
        command,
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **kwargs,
    )


def finish(process, timeout=240):
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    finally:
        if process.poll() is None:
            end_process_tree(process)
    return process.returncode, stdout, stderr


def test_the_sides_alternate_native_lightning_lightning_native():
    order = [(run.strategy, run.implementation) for run in plan(["ddp", "fsdp2"], 3, [])]
    assert order[:6] == [
        ("ddp", side) for side in ("native", "lightning", "lightning", "native", "native", "lightning")
    ]
    assert len(order) == 12


def test_a_control_run_joins_every_repeat_and_the_order_still_turns_around():
    order = [run.label or run.implementation for run in plan(["ddp"], 2, [], control=True)]
    assert order == ["native", "lightning", "control", "control", "lightning", "native"]


def test_control_runs_are_runs_of_native():
    controls = [run for run in plan(["ddp", "fsdp2"], 3, ["--steps", "4"], control=True) if run.label]
    assert {(run.implementation, run.label, run.arguments) for run in controls} == {
        ("native", "control", ("--steps", "4"))
    }
    assert len(controls) == 6


def test_without_control_no_run_has_a_label():
    assert {run.label for run in plan(["ddp"], 2, [])} == {None}


def test_every_variant_joins_every_repeat_on_its_own_side_and_the_order_still_turns_around():
    runs = plan(["ddp"], 2, [], variants={"ddp": [ZERO_GRAD, SIGTERM_BROADCAST]})
    order = [
        ("native", None), ("lightning", None), ("native", ZERO_GRAD), ("lightning", SIGTERM_BROADCAST),
    ]  # fmt: skip
    assert [(run.implementation, run.variant) for run in runs] == [*order, *reversed(order)]


def test_a_strategy_has_its_own_variants():
    runs = plan(["ddp", "fsdp2"], 1, [], variants={"ddp": [AUTOCAST_CACHE], "fsdp2": []})
    assert [run.strategy for run in runs if run.variant] == ["ddp"]


@pytest.mark.parametrize(
    ("precision", "world_size", "ddp", "fsdp2"),
    [
        ("bf16", 2, [ZERO_GRAD, AUTOCAST_CACHE, SIGTERM_BROADCAST], [ZERO_GRAD, SIGTERM_BROADCAST]),
        ("auto", 1, [ZERO_GRAD, AUTOCAST_CACHE], [ZERO_GRAD]),
        ("fp32", 2, [ZERO_GRAD, SIGTERM_BROADCAST], [ZERO_GRAD, SIGTERM_BROADCAST]),
    ],
)
def test_variants_with_nothing_to_switch_are_left_out_and_named(precision, world_size, ddp, fsdp2):
    chosen, left_out = choose_variants(["ddp", "fsdp2"], precision, world_size)
    assert chosen == {"ddp": ddp, "fsdp2": fsdp2}
    assert len(left_out) == 2 * len(VARIANTS) - len(ddp) - len(fsdp2)
    assert "left out for fsdp2: autocast-cache off (fsdp2 computes in bf16 without autocast)" in left_out


def test_every_run_of_a_plan_has_a_name_of_its_own():
    variants = dict.fromkeys(("ddp", "fsdp2"), VARIANTS)
    names = [run.name for run in plan(["ddp", "fsdp2"], 4, [], control=True, variants=variants)]
    assert len(set(names)) == len(names)


def test_a_failed_run_is_reported_with_the_end_of_its_output_and_does_not_stop_the_others(tmp_path):
    def execute(planned):
        log = tmp_path / f"{planned.name}.log"
        log.write_text(
            "the cause\nE1201 torch/distributed/elastic/multiprocessing/api.py:1 failed\ntorchrun's report\n"
        )
        failed = planned.implementation == "lightning"
        if not failed:
            save(tmp_path, f"{planned.name}.json")
        return FinishedRun(planned, tmp_path / f"{planned.name}.json", log, int(failed), 1.0)

    text = io.StringIO()
    finished = run_all(plan(["ddp"], 2, []), execute, Console(file=text, width=200))
    assert [run.succeeded for run in finished] == [True, False, False, True]
    assert "    the cause\n" in text.getvalue()
    assert "torchrun's report" not in text.getvalue()


def test_an_end_without_a_result_is_a_failure(tmp_path):
    log = tmp_path / "log"
    log.write_text("")
    run = FinishedRun(PlannedRun("native", "ddp", 1, ()), tmp_path / "none.json", log, 0, 1.0)
    assert not run.succeeded


@pytest.mark.parametrize(
    ("changes", "returncode", "succeeded"),
    [
        ({}, 0, True),
        ({}, 1, False),
        (OUT_OF_MEMORY, 1, True),
        (OUT_OF_MEMORY, 4, True),
        (OUT_OF_MEMORY, 0, False),
        ({"outcome__status": "diverged"}, 1, True),
    ],
)
def test_a_run_succeeded_if_it_ended_as_its_result_says(tmp_path, changes, returncode, succeeded):
    path = save(tmp_path, "result.json", **changes)
    assert FinishedRun(PlannedRun("native", "ddp", 1, ()), path, path, returncode, 1.0).succeeded is succeeded


def test_a_run_out_of_memory_is_told_in_one_line_as_what_it_is(tmp_path):
    path = save(tmp_path, "result.json", **OUT_OF_MEMORY)
    (line,) = describe(FinishedRun(PlannedRun("native", "ddp", 1, ()), path, path, 1, 1.0), 2, 6)
    assert line.startswith("[2/6] ddp-native-1: out_of_memory in step 1 (warmup) on rank 1: asked for 2.00 GiB")


def test_descendants_are_found_below_a_process():
    shell = subprocess.Popen(["bash", "-c", "sleep 60 & bash -c 'sleep 60 & wait' & wait"], start_new_session=True)
    try:
        deadline = time.monotonic() + 10
        while len(descendants(shell.pid)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        tree = descendants(shell.pid)
        assert len(tree) == 3
    finally:
        end_process_tree(shell)
    assert not any(is_running(pid) for pid in tree)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--global-batch-size", "3", "--nproc-per-node", "2"], "--global-batch-size 3 does not divide over 2 ranks"),
        (["--repeats", "0"], "'0' is not a whole number of at least 1"),
        (["--strategy", "fsdp1"], "fsdp1"),
        (["--steps", "x"], "'x' is not a whole number"),
    ],
)
def test_a_wrong_call_ends_with_one_line_and_exit_code_2(tmp_path, arguments, words):
    code, _, stderr = finish(compare_run(*arguments, "--output-dir", tmp_path / "new"), timeout=60)
    assert code == 2
    assert words in stderr
    assert len(stderr.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_a_folder_with_files_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine").write_text("precious")
    code, _, stderr = finish(compare_run("--output-dir", tmp_path), timeout=60)
    assert code == 2
    assert "is not empty" in stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_the_whole_path_from_run_to_tables(tmp_path):
    folder = tmp_path / "new"
    code, stdout, stderr = finish(
        compare_run("--repeats", 1, "--warmup-steps", 1, "--steps", 2, "--nproc-per-node", 2, "--output-dir", folder)
    )
    assert (code, stderr) == (0, "")
    assert (
        stdout.count("3 losses equal to the last bit; final weights equal to the last bit")
        + stdout.count("3 losses equal to the last")
        >= 2
    )
    assert {path.name for path in folder.glob("*.json")} == {
        f"{strategy}-{side}-1.json" for strategy in ("ddp", "fsdp2") for side in ("native", "lightning")
    }
    assert max(map(len, stdout.splitlines())) <= 80 + len(str(folder))


@pytest.mark.slow
@pytest.mark.whole_matrix
def test_control_runs_give_the_noise_floor(tmp_path):
    folder = tmp_path / "new"
    short = ("--repeats", 2, "--strategy", "ddp", "--warmup-steps", 1, "--steps", 4, "--nproc-per-node", 1)
    code, stdout, stderr = finish(compare_run("--control", *short, "--output-dir", folder))
    text = " ".join(stdout.split())
    assert (code, stderr) == (0, "")
    assert len(list(folder.glob("ddp-control-*.json"))) == 2
    assert "native A against native B (A/A: the difference is noise)" in text
    assert re.search(r"; native against itself [\d.]+ to [\d.]+", text)
    assert "ddp A/A losses and weights equal to the last bit" in text


@pytest.mark.slow
def test_attribution_runs_the_variants_and_shows_what_they_explain_then_and_later(tmp_path):
    folder = tmp_path / "new"
    short = ("--repeats", 1, "--strategy", "ddp", "--warmup-steps", 2, "--steps", 2, "--nproc-per-node", 2)
    code, stdout, stderr = finish(compare_run("--attribute", *short, "--output-dir", folder))
    assert (code, stderr) == (0, "")
    assert {path.name for path in folder.glob("*.json")} == {
        "ddp-native-1.json", "ddp-lightning-1.json", "ddp-native-zero-grad-after-forward-1.json",
        "ddp-lightning-sigterm-broadcast-off-1.json",
    }  # fmt: skip
    shown = subprocess.run(
        [sys.executable, "compare.py", "show", folder, "--no-responsibilities"],
        cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    for text in (stdout, shown):
        _, _, attribution = text.partition("What the difference costs: ddp, preset tiny, fp32")
        words = " ".join(attribution.split())
        assert "all 4 losses equal to the last bit; final weights equal to the last bit" in words
        assert "native --zero-grad after-forward" in words
        assert "lightning_impl --sigterm-broadcast off" in words
        assert "peak_allocated_gib n/a" in words


@pytest.mark.slow
@mostly("signal_number", signal.SIGINT, [signal.SIGTERM])
def test_an_interruption_leaves_no_process_and_no_result(tmp_path, signal_number):
    folder = tmp_path / "new"
    process = compare_run("--repeats", 1, "--steps", 100000, "--strategy", "ddp", "--output-dir", folder)
    log = folder / "logs" / "ddp-native-1.log"
    deadline = time.monotonic() + 90
    # Two ranks below torchrun, below us: all of them are up when four processes are seen.
    while len(descendants(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(6)
    tree = descendants(process.pid)
    assert len(tree) >= 3, log.read_text()
    process.send_signal(signal_number)
    code, _, stderr = finish(process, timeout=40)
    assert code == 130
    assert "interrupted" in stderr
    assert not any(is_running(pid) for pid in tree)
    assert not list(folder.glob("*.json"))
