import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import RunError
from common.options import IMPLEMENTATION_MODULES, MAX_SEED, RunConfig, build_parser, check_output, parse_options
from tests.runs import run

IMPLEMENTATIONS = list(IMPLEMENTATION_MODULES)
COUNTS = ["--batch-size-per-device", "--global-batch-size", "--warmup-steps", "--steps", "--devices", "--num-nodes"]
TORCHRUN_OF_FOUR = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "test",
}


def call(implementation: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess:
    """Call one side with ``--strategy ddp`` and tell on stderr what it imported."""
    module = IMPLEMENTATION_MODULES[implementation]
    command = [sys.executable, "-X", "importtime", "-m", module, "--strategy", "ddp", *arguments]
    return run(command, timeout=30, **environ)


def message(process: subprocess.CompletedProcess) -> list[str]:
    return [line for line in process.stderr.splitlines() if not line.startswith("import time:")]


def imported(process: subprocess.CompletedProcess) -> set[str]:
    lines = [line for line in process.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


def refusal(capsys, implementation: str, *arguments: str) -> str:
    """Parse a wrong command line in this process and return what it printed, after checking the exit code."""
    with pytest.raises(SystemExit) as ending:
        parse_options(implementation, ["--strategy", "ddp", *arguments])
    assert ending.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path


def config(output: Path, **changes) -> RunConfig:
    return RunConfig("native", "ddp", output=output, **changes)


# Parsing


def test_both_sides_offer_the_same_options():
    native, lightning = (
        [(action.option_strings, action.default, action.choices, action.help) for action in build_parser(name)._actions]
        for name in IMPLEMENTATIONS
    )
    assert native == lightning


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_defaults_of_the_command_line_are_those_of_the_configuration(implementation):
    assert parse_options(implementation, ["--strategy", "ddp"]) == RunConfig(implementation, "ddp")


def test_every_option_reaches_the_configuration():
    arguments = (
        "--strategy fsdp2 --preset tiny --fsdp-wrap root --global-batch-size 8 --warmup-steps 2 --steps 3 "
        "--precision bf16 --seed 7 --devices 2 --num-nodes 4 --device cpu --output out.json --overwrite-output "
        "--label control --memory-snapshot memory.pickle --zero-grad after-forward --autocast-cache off"
    )
    assert parse_options("native", arguments.split()) == RunConfig(
        implementation="native",
        strategy="fsdp2",
        preset="tiny",
        fsdp_wrap="root",
        batch_size_per_device=None,
        global_batch_size=8,
        warmup_steps=2,
        steps=3,
        precision="bf16",
        seed=7,
        devices=2,
        num_nodes=4,
        device="cpu",
        output=Path("out.json"),
        overwrite_output=True,
        label="control",
        memory_snapshot=Path("memory.pickle"),
        zero_grad="after-forward",
        autocast_cache="off",
    )


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "x", ""])
@pytest.mark.parametrize("option", COUNTS)
def test_a_bad_count_is_answered_with_the_option_the_value_and_what_would_be_right(capsys, option, value):
    text = refusal(capsys, "native", f"{option}={value}")
    assert option in text
    assert f"{value!r} is not a whole number of at least 1" in text


@pytest.mark.parametrize("value", ["-1", "1.5", "x", str(MAX_SEED + 1)])
def test_a_bad_seed_is_answered_with_the_value_and_the_range(capsys, value):
    assert f"{value!r} is not a whole number from 0 to {MAX_SEED}" in refusal(capsys, "native", f"--seed={value}")


@pytest.mark.parametrize("seed", [0, MAX_SEED])
def test_the_ends_of_the_range_of_seeds_are_accepted(seed):
    assert parse_options("native", ["--strategy", "ddp", "--seed", str(seed)]).seed == seed


@pytest.mark.parametrize(
    ("option", "valid"),
    [
        ("--strategy", ["ddp", "fsdp2"]),
        ("--preset", ["tiny", "small", "medium", "large"]),
        ("--fsdp-wrap", ["block", "root"]),
        ("--precision", ["auto", "fp32", "bf16"]),
        ("--device", ["auto", "cpu", "cuda"]),
    ],
)
def test_an_unknown_choice_is_answered_with_the_valid_ones(capsys, option, valid):
    text = refusal(capsys, "native", option, "wrong")
    assert [name for name in ["'wrong'", *valid] if name not in text] == []


def test_both_batch_options_together_are_refused_by_name(capsys):
    text = refusal(capsys, "native", "--batch-size-per-device", "1", "--global-batch-size", "2")
    assert "--global-batch-size: not allowed with argument --batch-size-per-device" in text


def test_no_warm_up_is_refused_with_the_reason(capsys):
    assert "the first step allocates optimizer state" in refusal(capsys, "native", "--warmup-steps", "0")


def test_a_missing_strategy_is_named(capsys):
    with pytest.raises(SystemExit):
        parse_options("native", [])
    assert "--strategy" in capsys.readouterr().err


def test_an_option_is_not_guessed_from_its_beginning(capsys):
    assert "--step 3" in refusal(capsys, "native", "--step", "3")


def test_the_answer_tells_where_help_is(capsys):
    assert "python -m lightning_impl --help" in refusal(capsys, "lightning", "--steps", "0")


# Batch sizes


@pytest.mark.parametrize(
    ("options", "share"), [({}, 1), ({"batch_size_per_device": 3}, 3), ({"global_batch_size": 8}, 2)]
)
def test_each_of_four_ranks_gets_its_share_of_the_batch(options, share):
    assert RunConfig("native", "ddp", **options).local_batch_size(4) == share


@pytest.mark.parametrize(("size", "suggestion"), [(6, "for example 4 or 8"), (3, "for example 4")])
def test_a_global_batch_that_does_not_divide_is_answered_with_sizes_that_do(size, suggestion):
    with pytest.raises(RunError, match=f"--global-batch-size {size} does not divide over 4 ranks.*{suggestion}$"):
        RunConfig("native", "ddp", global_batch_size=size).local_batch_size(4)


# The processes themselves

BAD_CALLS = [
    pytest.param(["--steps", "0"], ["--steps", "'0'", "at least 1"], id="zero steps"),
    pytest.param(["--warmup-steps", "1.5"], ["--warmup-steps", "'1.5'", "whole number"], id="fraction"),
    pytest.param(["--preset", "huge"], ["'huge'", "tiny", "large"], id="unknown preset"),
    pytest.param(
        ["--batch-size-per-device", "1", "--global-batch-size", "2"],
        ["--batch-size-per-device", "--global-batch-size"],
        id="both batch options",
    ),
    pytest.param(["--global-batch-size", "6"], ["6", "4 ranks", "4 or 8"], id="indivisible batch"),
    pytest.param(["--devices", "2"], ["--devices 2", "1 x 4 = 4"], id="other number of ranks"),
    pytest.param(["--output", "/"], ["/ is a folder"], id="output is a folder"),
]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
class TestBadCall:
    @pytest.mark.parametrize(("arguments", "fragments"), BAD_CALLS)
    def test_prints_one_line_that_names_the_value_and_what_would_be_right(self, implementation, arguments, fragments):
        (line,) = message(call(implementation, *arguments, **TORCHRUN_OF_FOUR))
        assert [fragment for fragment in fragments if fragment not in line] == []

    @pytest.mark.parametrize(("arguments", "fragments"), BAD_CALLS)
    def test_ends_with_exit_code_2_before_anything_slow_is_imported(self, implementation, arguments, fragments):
        process = call(implementation, *arguments, **TORCHRUN_OF_FOUR)
        assert (process.returncode, imported(process) & {"torch", "lightning", "numpy"}) == (2, set())

    def test_is_answered_once_a_node(self, implementation):
        second = call(implementation, "--steps", "0", **TORCHRUN_OF_FOUR | {"RANK": "1", "LOCAL_RANK": "1"})
        assert (second.returncode, message(second)) == (2, [])

    def test_is_answered_by_a_process_without_launcher_whatever_variables_were_left_behind(self, implementation):
        assert len(message(call(implementation, "--steps", "0", LOCAL_RANK="1"))) == 1

    def test_is_answered_in_under_two_seconds(self, implementation):
        def seconds() -> float:
            begin = time.perf_counter()
            call(implementation, "--steps", "0")
            return time.perf_counter() - begin

        assert min(seconds() for _ in range(3)) < 2


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_help_fits_80_columns(implementation):
    text = run([sys.executable, "-m", IMPLEMENTATION_MODULES[implementation], "--help"], timeout=30).stdout
    assert max(len(line) for line in text.splitlines()) <= 80


def test_help_is_grouped():
    groups = ["strategy:", "model and sharding:", "batch and steps:", "numerics:", "where it runs:", "output:"]
    lines = build_parser("native").format_help().splitlines()
    assert [line for line in lines if line in groups] == groups


def test_help_explains_every_option():
    assert [action.dest for action in build_parser("native")._actions if not action.help] == []


# The output file, before training


@pytest.mark.parametrize("rank", [0, 1])
def test_an_existing_output_is_refused_on_every_rank(folder, rank):
    output = folder / "result.json"
    output.write_bytes(b"precious")
    with pytest.raises(RunError, match="exists; name another file or add --overwrite-output"):
        check_output(config(output), rank)


@pytest.mark.parametrize("overwrite", [False, True])
def test_checking_leaves_an_existing_file_as_it_is(folder, overwrite):
    output = folder / "result.json"
    output.write_bytes(b"precious")
    try:
        check_output(config(output, overwrite_output=overwrite), 0)
    except RunError:
        assert not overwrite
    assert output.read_bytes() == b"precious"


def test_checking_leaves_nothing_in_the_folder(folder):
    check_output(config(folder / "result.json"), 0)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("steps", [1, 2])
def test_a_memory_snapshot_of_too_short_a_warm_up_is_refused_with_the_number_that_suffices(folder, steps):
    with pytest.raises(RunError, match=f"--warmup-steps is {steps}; use --warmup-steps 3 or more") as error:
        check_output(RunConfig("native", "ddp", memory_snapshot=folder / "snapshot", warmup_steps=steps), 0)
    assert error.value.exit_code == 2


def test_a_memory_snapshot_that_exists_is_refused_by_its_option(folder):
    (folder / "snapshot").touch()
    with pytest.raises(RunError, match=f"--memory-snapshot {folder}/snapshot exists"):
        check_output(RunConfig("native", "ddp", memory_snapshot=folder / "snapshot"), 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_folder_as_output_is_answered_with_a_file_in_it(folder, rank):
    with pytest.raises(RunError, match=f"is a folder; name a file in it, for example --output {folder}/result.json"):
        check_output(config(folder, overwrite_output=True), rank)


def test_a_missing_folder_is_answered_with_the_command_that_creates_it(folder):
    with pytest.raises(RunError, match=f"create it with: mkdir -p {folder}/missing$"):
        check_output(config(folder / "missing" / "result.json"), 0)


def test_a_missing_folder_is_no_concern_of_other_ranks_who_may_see_other_disks(folder):
    check_output(config(folder / "missing" / "result.json"), 1)


def test_a_file_in_the_place_of_the_folder_is_named(folder):
    (folder / "file").touch()
    with pytest.raises(RunError, match="file is a file, not a folder"):
        check_output(config(folder / "file" / "result.json"), 0)


def test_a_folder_that_cannot_be_written_is_found_before_training():
    with pytest.raises(RunError, match=r"/proc/result.json cannot be written .*; choose a folder you may write to"):
        check_output(config(Path("/proc/result.json")), 0)


def test_a_folder_that_may_not_be_read_is_answered_without_a_traceback(folder, monkeypatch):
    def forbidden(self, **kwargs):
        raise PermissionError(13, os.strerror(13), str(self))

    monkeypatch.setattr(Path, "stat", forbidden)
    monkeypatch.setattr(Path, "is_dir", lambda self: False)
    with pytest.raises(RunError, match=r"cannot be written \(Permission denied\)"):
        check_output(config(folder / "result.json"), 0)


def test_a_name_that_is_too_long_is_answered_without_a_traceback(folder):
    with pytest.raises(RunError, match="File name too long"):
        check_output(config(folder / ("x" * 300)), 0)


def test_a_loop_of_links_is_answered_without_a_traceback(folder):
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    with pytest.raises(RunError, match="cannot be written"):
        check_output(config(folder / "a" / "result.json"), 0)


def test_a_device_file_is_never_replaced():
    with pytest.raises(RunError, match="/dev/null is no regular file"):
        check_output(config(Path("/dev/null"), overwrite_output=True), 0)


@pytest.mark.parametrize(
    "command",
    [("-m", "native", "--strategy", "ddp"), ("compare.py", "show", "README.md"), ("compare.py", "responsibilities")],
)
def test_a_python_without_the_dependencies_is_told_where_they_are(command):
    # -S leaves out site-packages, so that none of them is found.
    ended = subprocess.run(
        [sys.executable, "-S", *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    assert ended.returncode == 1
    assert "source .venv/bin/activate" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
