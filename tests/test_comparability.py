"""Comparable or refused: two good results, and copies of one with a single field changed at a time.

Every leaf of the schema has an expectation here; a new field without one fails the first test.
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

import compare
from common.result import Outcome, Result, Section
from comparison.metrics import METRICS
from tests.factories import OUT_OF_MEMORY, make_data, save, timed
from tests.runs import signals_restored

SLURM = {"job_id": "7", "step_id": "3", "node_list": "node[1-2]", "tasks_per_node": "1(x2)"}

REFUSED: dict[str, Any] = {
    "workload.strategy": "fsdp2",
    "workload.fsdp_wrap": "block",
    "workload.preset": "small",
    "workload.model.blocks": 3,
    "workload.model.hidden_size": 128,
    "workload.model.heads": 8,
    "workload.model.sequence_length": 64,
    "workload.model.vocabulary_size": 8192,
    "workload.model.classes": 32,
    "workload.device_type": "cpu",
    "workload.world_size": 4,
    "workload.batch_size_per_device": 2,
    "workload.global_batch_size": 4,
    "workload.precision_resolved": "fp32",
    "workload.seed": 7,
    "workload.warmup_steps": 3,
    "workload.steps": 5,
    "workload.memory_snapshot": True,
    "workload.global_parameter_count": 364161,
    "workload.reshard_after_forward": {"block": True},
    "workload.optimizer.name": "SGD",
    "workload.optimizer.learning_rate": 0.5,
    "workload.optimizer.beta1": 0.5,
    "workload.optimizer.beta2": 0.75,
    "workload.optimizer.epsilon": 1e-6,
    "workload.optimizer.weight_decay": 0.0,
    "workload.optimizer.amsgrad": True,
    "workload.optimizer.foreach": True,
    "workload.optimizer.fused": True,
    "workload.initial_weights_sha256": "d" * 64,
    "workload.batch_sha256": "d" * 64,
}
"""What must be equal, and another value."""

WARNED: dict[str, Any] = {
    "environment.launcher": "srun",
    "environment.num_nodes": 2,
    "environment.local_world_size": 1,
    "environment.hosts": ["node2"],
    "environment.nodes_share_hardware": True,
    "environment.slurm.node_list": "node[3-4]",
    "environment.slurm.tasks_per_node": "2(x2)",
    "environment.process_group_backend": "gloo",
    "environment.device_name": "NVIDIA A100",
    "environment.cpu_model": "another CPU",
    "environment.cpu_count": 4,
    "environment.cpu_threads": 1,
    "environment.float32_matmul_precision": "high",
    "environment.cudnn_allow_tf32": False,
    "environment.cudnn_benchmark": True,
    "environment.deterministic_algorithms": True,
    "environment.platform": "Linux 7",
    "environment.python_version": "3.12.1",
    "environment.torch_version": "2.11.0",
    "environment.cuda_version": "12.8",
    "environment.nccl_version": "2.27.3",
    "environment.driver_version": "570.1",
    "environment.power_limit_watts": 350.0,
    "environment.variables": {"OMP_NUM_THREADS": "4"},
}
"""What should be equal, and another value."""

FINDING: dict[str, Any] = {
    "choices.zero_grad": "after forward",
    "choices.autocast_cache": False,
    "choices.allocator_streams": 2,
    "choices.ddp.bucket_cap_mib": 50.0,
    "choices.ddp.gradient_as_bucket_view": False,
    "choices.ddp.broadcast_buffers": False,
    "choices.ddp.find_unused_parameters": True,
    "choices.ddp.static_graph": True,
    "choices.variables": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
}
"""What a framework may choose on its own, and another choice."""

VARIED: dict[str, Any] = {"workload.variants": ["sigterm-broadcast off"]}
"""What makes a side a variant, and Lightning's."""

NOTHING: dict[str, Any] = {
    "label": "second try",
    "environment.started_at": "2026-12-02T00:00:00+00:00",
    "environment.command": ["python -m lightning_impl", "--precision", "bf16"],
    "environment.slurm.job_id": "8",
    "environment.slurm.step_id": "4",
    "environment.timeout_seconds": 600,
    "environment.precision_requested": "bf16",
    "environment.precision_reason": "requested",
}
"""What differs by its nature, and another value."""

OF_THEIR_OWN = {"schema_version", "implementation", "outcome.status", "environment.lightning_version"}
"""Leaves with tests of their own below."""

DETAILS = {f"outcome.{name}" for name in Outcome.model_fields} - {"outcome.status"}
"""What only an outcome that is no number has."""

MEASURED_SECTIONS = {"timing", "memory", "parameters", "correctness", "responsibilities"}
EVERYTHING = REFUSED | WARNED | FINDING | VARIED | NOTHING


def leaves(model: type[Section], prefix: str = "") -> list[str]:
    """Return the dotted names of all fields that are no section themselves."""
    found = []
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        section = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)
        found += leaves(section, f"{prefix}{name}.") if section else [prefix + name]
    return found


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def shown(field: str, value: Any) -> tuple[str, str]:
    """Return the name and the value of a field as the comparison shows them: dictionaries by their keys."""
    if isinstance(value, dict):
        ((key, value),) = value.items()
        field = f"{field}.{key}"
    return field.partition(".")[2], text_of(value)


def value_in(data: dict, field: str) -> Any:
    for name in field.split("."):
        data = data[name] if data is not None else None
    return data


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with signals_restored():
        yield


@pytest.fixture
def show(capsys):
    """`compare.py show` in this process: exit code, stdout with single blanks, stderr."""

    def call(*arguments) -> tuple[int, str, str]:
        code = compare.main(["show", *map(str, arguments), "--no-responsibilities"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@dataclass
class Two:
    """Two good results in a folder."""

    folder: Path

    def __post_init__(self) -> None:
        self.native, self.lightning = self.folder / "n.json", self.folder / "l.json"
        save(self.folder, "n.json", "native", environment__slurm=dict(SLURM))
        self.change()

    def change(self, field: str = "", value: Any = None, **more: Any) -> Path:
        """Write the second one anew with changes, the first of them by its dotted name; return the folder."""
        changes = {field.replace(".", "__"): value} if field else {}
        data = make_data("lightning", environment__slurm=dict(SLURM), **more, **changes)
        self.lightning.write_text(json.dumps(data))
        return self.folder


@pytest.fixture
def two(tmp_path):
    (tmp_path / "two").mkdir()
    return Two(tmp_path / "two")


def squeezed(text: str) -> str:
    return " ".join(text.split())


def numbers_in(text: str) -> list[str]:
    names = [metric.name for metric in METRICS if metric.section != "workload"]
    return [name for name in names if re.search(rf"\b{name} +[\d.,-]+ ", text)]


def test_every_leaf_of_the_schema_has_an_expectation():
    measured = {name for name in leaves(Result) if name.partition(".")[0] in MEASURED_SECTIONS}
    assert set(leaves(Result)) - measured == {*EVERYTHING, *OF_THEIR_OWN, *DETAILS}
    assert {name.partition(".")[0] for name in measured} == MEASURED_SECTIONS


def test_the_expectations_name_other_values_than_the_good_results_have():
    good = make_data(environment__slurm=dict(SLURM))
    assert [name for name, value in EVERYTHING.items() if value_in(good, name) == value] == []


def test_two_good_results_are_compared_without_a_warning(two, show):
    code, out, err = show(two.folder)
    assert (code, err) == (0, "")
    assert "milliseconds_per_step" in numbers_in(out)
    assert not re.search(r"^(warning|finding|NOT EQUAL|outcome|remark) ", out, re.MULTILINE)


# What must be equal


@pytest.mark.parametrize(("field", "value"), REFUSED.items(), ids=REFUSED)
class TestWorkloadFieldThatDiffers:
    def test_is_refused_with_exit_code_3(self, two, show, field, value):
        assert show(two.change(field, value))[0] == 3

    def test_is_named_with_both_values(self, two, show, field, value):
        name, other = shown(field, value)
        own = text_of(None if isinstance(value, dict) else value_in(make_data(), field))
        assert f" {name} {own} {other} " in f"{squeezed(show(two.change(field, value))[1])} "

    def test_is_named_alone(self, two, show, field, value):
        (mismatch,) = json.loads(show(two.change(field, value), "--format", "json")[1])["not_comparable"]
        assert [difference["field"] for difference in mismatch["differences"]] == [shown(field, value)[0]]

    def test_leaves_no_number_and_no_verdict(self, two, show, field, value):
        out = show(two.change(field, value))[1]
        assert numbers_in(out) == []
        assert "verdict" not in out
        assert "ratio" not in out

    @pytest.mark.parametrize("style", ["json", "csv", "markdown"])
    def test_leaves_no_number_in_a_document_either(self, two, show, field, value, style):
        code, out, _ = show(two.change(field, value), "--format", style)
        assert (code, "milliseconds_per_step" in out) == (3, False)

    def test_is_shown_by_force_with_the_mismatch_above_the_numbers_and_no_verdict(self, two, show, field, value):
        code, out, _ = show(two.change(field, value), "--force")
        assert code == 0
        assert re.search(rf"^NOT EQUAL +{re.escape(shown(field, value)[0])}: ", out, re.MULTILINE)
        assert out.index("NOT EQUAL") < out.index("milliseconds_per_step")
        assert "no verdict: the workloads differ" in out


def test_every_field_that_differs_is_named_not_just_the_first(two, show):
    out = show(two.change("workload.seed", 7, workload__steps=3, workload__optimizer__beta1=0.5))[1]
    assert [name for name in ("seed 1234 7", "steps 2 3") if name not in squeezed(out)] == []


def test_what_a_run_asked_for_and_what_it_found_out_are_both_named(two, show):
    out = squeezed(show(two.change("workload.batch_sha256", "d" * 64, workload__seed=7))[1])
    assert "seed 1234 7" in out


def test_force_changes_nothing_where_nothing_differs(two, show):
    assert show(two.folder, "--force") == show(two.folder)


def test_a_pair_that_is_comparable_is_shown_beside_one_that_is_not(two, show):
    save(two.folder, "n2.json", "native", workload__batch_sha256="d" * 64, workload__seed=7)
    save(two.folder, "l2.json", "lightning", workload__batch_sha256="e" * 64, workload__seed=7)
    code, out, _ = show(two.folder)
    assert code == 3
    assert out.index("NOT COMPARABLE") < out.index("milliseconds_per_step")


# What should be equal


@pytest.mark.parametrize(("field", "value"), WARNED.items(), ids=WARNED)
class TestSettingThatDiffers:
    def test_is_no_refusal(self, two, show, field, value):
        assert show(two.change(field, value))[0] == 0

    def test_is_warned_about_above_the_table_with_both_values_and_the_next_step(self, two, show, field, value):
        out = squeezed(show(two.change(field, value))[1])
        name, other = shown(field, value)
        own = text_of(value_in(make_data(environment__slurm=dict(SLURM)), f"environment.{name}"))
        warning = f"warning {name}: native {own}, lightning {other}; repeat both under equal conditions"
        assert warning in out
        assert out.index(warning) < out.index("milliseconds_per_step")

    def test_leaves_the_numbers_as_they_are(self, two, show, field, value):
        def metrics(folder: Path) -> list[dict]:
            return json.loads(show(folder, "--format", "json")[1])["pairs"][0]["metrics"]

        before = metrics(two.folder)
        assert metrics(two.change(field, value)) == before


@pytest.mark.parametrize("variables", [{"OMP_NUM_THREADS": "8", "NCCL_ALGO": "Ring"}, {}])
def test_a_variable_that_only_one_side_had_is_warned_about(two, show, variables):
    out = show(two.change("environment.variables", variables))[1]
    name = "NCCL_ALGO" if variables else "OMP_NUM_THREADS"
    assert re.search(rf"^warning +variables.{name}: native ", out, re.MULTILINE)


def test_runs_of_one_side_that_differ_from_each_other_are_warned_about(two, show):
    save(two.folder, "n2.json", "native", environment__slurm=dict(SLURM), environment__torch_version="2.11.0")
    assert "warning torch_version: native 2.13.0 / 2.11.0, lightning 2.13.0; " in squeezed(show(two.folder)[1])


def test_the_version_of_lightning_is_shown_and_no_difference_to_native(two, show):
    code, out, _ = show(two.change("environment.lightning_version", "2.6.7"))
    assert (code, "lightning 2.6.7" in out, "warning" in out) == (0, True, False)


def test_two_versions_of_lightning_are_warned_about(two, show):
    newer = {"environment__lightning_version": "2.6.7", "environment__slurm": dict(SLURM)}
    save(two.folder, "l2.json", "lightning", **newer)
    assert "warning lightning_version: native null, lightning 2.6.6 / 2.6.7; " in squeezed(show(two.folder)[1])


# What a framework may choose


@pytest.mark.parametrize(("field", "value"), FINDING.items(), ids=FINDING)
def test_a_choice_that_differs_is_a_finding_and_nothing_else(two, show, field, value):
    code, out, err = show(two.change(field, value))
    name, other = shown(field, value)
    assert (code, err) == (0, "")
    _, mine = shown(field, value_in(make_data(), field))
    assert f"finding {name}: native {mine}, lightning {other}" in squeezed(out)
    assert not re.search(r"^(warning|NOT EQUAL) ", out, re.MULTILINE)


def test_choices_are_in_the_json_too(two, show):
    (pair,) = json.loads(show(two.change("choices.zero_grad", "after forward"), "--format", "json")[1])["pairs"]
    assert pair["findings"] == [{"field": "zero_grad", "baseline": ["before forward"], "other": ["after forward"]}]


# What makes a variant


@pytest.mark.parametrize(("field", "value"), VARIED.items(), ids=VARIED)
def test_a_variant_is_compared_by_its_own_name_and_not_refused(two, show, field, value):
    code, out, err = show(two.change(field, value))
    assert (code, err) == (0, "")
    assert f"bf16: native against lightning {value[0]}" in out
    assert f"variant lightning {value[0]}: run with --{value[0]}, to " in squeezed(out)
    assert not re.search(r"^(warning|NOT EQUAL) ", out, re.MULTILINE)


# What differs by its nature


@pytest.mark.parametrize(("field", "value"), NOTHING.items(), ids=NOTHING)
def test_what_differs_by_its_nature_changes_not_a_letter(two, show, field, value):
    before = show(two.folder)
    assert show(two.change(field, value)) == before


# Outcomes


@pytest.mark.parametrize(
    ("status", "code"),
    [("out_of_memory", 0), ("diverged", 1), ("out_of_sync", 1), ("untrained", 1)],
)
class TestOutcomeThatIsNoNumber:
    def test_has_its_exit_code(self, two, show, status, code):
        assert show(two.change("outcome.status", status))[0] == code

    def test_is_shown_above_everything_else_without_a_verdict(self, two, show, status, code):
        out = show(two.change("outcome.status", status))[1]
        assert re.search(rf"^outcome +lightning: {status} ", out, re.MULTILINE)
        assert "no verdict: " in out

    def test_leaves_no_number(self, two, show, status, code):
        assert numbers_in(show(two.change("outcome.status", status))[1]) == []

    def test_is_in_the_json(self, two, show, status, code):
        (pair,) = json.loads(show(two.change("outcome.status", status), "--format", "json")[1])["pairs"]
        assert [outcome["status"] for outcome in pair["outcomes"]] == ["completed", status]
        assert pair["time"]["finding"].startswith("no verdict: ")
        assert (pair["parity"], pair["metrics"]) == (None, [])


class TestOutOfMemory:
    @pytest.fixture
    def out(self, two, show):
        two.change(**OUT_OF_MEMORY)
        return squeezed(show(two.folder)[1])

    def test_is_evidence_with_step_phase_rank_and_sizes(self, out):
        line = "lightning: out_of_memory in step 1 (warmup) on rank 1: asked for 2.00 GiB, free were 1.50 GiB"
        assert f"outcome {line}" in out

    def test_is_comparable_though_it_never_found_out_its_whole_workload(self, out):
        assert "NOT COMPARABLE" not in out
        assert "warning" not in out

    def test_names_the_side_that_has_no_times(self, out):
        assert "no verdict: no completed run of lightning" in out


def test_both_sides_out_of_memory_are_compared_as_capacity(two, show):
    two.change(**OUT_OF_MEMORY)
    two.native.unlink()
    save(two.folder, "n.json", "native", environment__slurm=dict(SLURM), **OUT_OF_MEMORY)
    code, out, _ = show(two.folder)
    assert (code, out.count("out_of_memory in step 1")) == (0, 2)


# The same implementation, the same file


@pytest.fixture
def alike(tmp_path):
    """Two runs of native, the second of which started later."""
    later = {"environment__started_at": "2026-12-02T00:00:00+00:00"}
    return save(tmp_path, "x.json", **timed(10)), save(tmp_path, "y.json", **timed(11), **later)


def test_two_results_of_one_implementation_are_an_a_a_comparison_and_labelled_as_one(alike, show):
    code, out, _ = show(*alike)
    assert code == 0
    assert "native A against native B (A/A: the difference is noise)" in out


@pytest.mark.parametrize("implementation", ["native", "lightning"])
def test_a_result_whose_implementation_is_the_others_is_an_a_a_comparison(two, show, implementation):
    path = two.lightning if implementation == "native" else two.native
    data = json.loads(path.read_text())
    data["implementation"] = implementation
    path.write_text(json.dumps(data))
    code, out, _ = show(two.folder)
    assert (code, f"{implementation} A against {implementation} B (A/A" in out) == (0, True)


def test_the_earlier_run_is_a_whatever_the_order(alike, show):
    assert show(*alike) == show(*reversed(alike))


def test_two_results_of_one_implementation_and_unequal_workloads_are_refused(alike, show, tmp_path):
    other = save(tmp_path, "z.json", workload__seed=7)
    code, out, _ = show(alike[0], other)
    assert (code, numbers_in(out)) == (3, [])
    assert "field native A native B" in squeezed(out)
    assert "seed 1234 7" in squeezed(out)


@pytest.mark.parametrize("spelling", ["same", "relative", "link", "hard link"])
def test_the_same_file_twice_is_refused(alike, show, tmp_path, monkeypatch, spelling):
    monkeypatch.chdir(tmp_path)
    again = {"same": alike[0], "relative": Path("x.json"), "link": Path("link.json"), "hard link": Path("hard.json")}
    Path("link.json").symlink_to(alike[0])
    Path("hard.json").hardlink_to(alike[0])
    code, out, err = show(alike[0], again[spelling])
    assert (code, numbers_in(out)) == (1, [])
    assert "a run cannot be compared with itself" in err


def test_a_byte_identical_copy_is_refused_by_the_name_of_its_original(alike, show, tmp_path):
    shutil.copy(alike[0], tmp_path / "copy.json")
    code, out, err = show(alike[0], tmp_path / "copy.json")
    assert (code, numbers_in(out)) == (1, [])
    assert f"{tmp_path}/copy.json: a copy of {alike[0]}; a run cannot be compared with itself" in err


def test_a_file_that_lies_in_a_folder_named_too_is_no_second_run(two, show):
    assert show(two.folder, two.native) == show(two.folder) == show(two.native, two.folder)


def test_a_result_of_another_schema_is_named_and_nothing_is_compared(two, show):
    code, out, err = show(two.change("schema_version", "2.0"))
    assert (code, numbers_in(out)) == (1, [])
    assert "l.json: schema_version: " in err


# Control runs


@pytest.fixture
def controlled(tmp_path):
    """Three runs of native, three of Lightning, and three control runs of native."""
    for number in range(3):
        started = {"environment__started_at": f"2026-12-0{number + 1}T00:00:00+00:00"}
        save(tmp_path, f"n{number}.json", "native", **timed(10 + 0.1 * number), **started)
        save(tmp_path, f"l{number}.json", "lightning", **timed(13 + 0.1 * number), **started)
        save(tmp_path, f"c{number}.json", "native", label="control", **timed(10.05 + 0.1 * number), **started)
    return tmp_path


class TestControlRuns:
    def test_put_the_noise_floor_beside_the_verdict(self, controlled, show):
        code, out, _ = show(controlled)
        noise = re.search(r"lightning takes longer; ratio .*?; native against itself (\S+) to (\S+)", squeezed(out))
        assert code == 0
        assert float(noise[1]) < 1 < float(noise[2])

    def test_are_a_pair_of_their_own(self, controlled, show):
        assert "native A against native B (A/A: the difference is noise)" in show(controlled)[1]

    def test_do_not_count_among_the_runs_that_are_compared(self, controlled, show):
        pairs = json.loads(show(controlled, "--format", "json")[1])["pairs"]
        assert [pair["labels"] for pair in pairs] == [["native", "lightning"], ["native A", "native B"]]
        assert [len(pair["baseline"]) for pair in pairs] == [3, 3]
        assert pairs[0]["time"]["noise"]["low"] < 1 < pairs[0]["time"]["noise"]["high"]
        assert pairs[1]["time"]["noise"] is None

    def test_alone_are_still_runs_of_their_implementation(self, controlled, show):
        for path in controlled.glob("n*.json"):
            path.unlink()
        code, out, _ = show(controlled)
        assert (code, "native against lightning" in out) == (0, True)

    def test_of_another_workload_say_nothing_about_the_noise_of_this_one(self, controlled, show):
        for path in controlled.glob("c*.json"):
            data = json.loads(path.read_text())
            data["workload"]["initial_weights_sha256"] = "d" * 64
            path.write_text(json.dumps(data))
        pairs = json.loads(show(controlled, "--format", "json")[1])["pairs"]
        assert pairs[0]["time"]["noise"] is None
