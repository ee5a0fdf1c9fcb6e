import errno
import json
import os
import stat
import struct
import sys
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from common import atomic
from common.errors import RunError
from common.result import FOUND_OUT, MEASURED, Outcome, Result, ResultFileError, read_result, write_result
from tests.factories import OUT_OF_MEMORY, make_data, make_result
from tests.runs import ROOT, Cell, run

SCHEMA_FILE = ROOT / "docs" / "result.schema.json"


def bits(values: list[float]) -> list[bytes]:
    return [struct.pack("<d", value) for value in values]


def written(folder: Path, data) -> Path:
    """Write ``data`` as anybody could, without this project's checks."""
    path = folder / "result.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def leaves(data, prefix: str = "") -> list[str]:
    """Return the names of all keys in nested dictionaries, dotted."""
    names = []
    for key, value in data.items():
        names.append(prefix + key)
        if isinstance(value, dict):
            names += leaves(value, f"{prefix}{key}.")
    return names


# Out and in again


def test_a_result_is_read_as_it_was_written(tmp_path):
    result = make_result()
    write_result(tmp_path / "result.json", result, overwrite=False)
    assert read_result(tmp_path / "result.json") == result


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3))
def test_every_finite_float_survives_to_the_last_bit(tmp_path, losses):
    write_result(tmp_path / "result.json", make_result(correctness__losses=losses), overwrite=True)
    assert bits(read_result(tmp_path / "result.json").correctness.losses) == bits(losses)


@pytest.mark.parametrize("value", [-0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1, 2 / 3, 1e22])
def test_a_float_that_is_hard_to_print_survives_to_the_last_bit(tmp_path, value):
    write_result(tmp_path / "result.json", make_result(correctness__losses=[value] * 3), overwrite=True)
    assert bits(read_result(tmp_path / "result.json").correctness.losses) == bits([value] * 3)


def test_the_file_is_json_that_other_programs_accept(tmp_path):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    write_result(tmp_path / "result.json", make_result(), overwrite=False)
    text = (tmp_path / "result.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=refuse) == make_data()


# What is refused


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_know_is_refused_in_memory(value):
    with pytest.raises(ValidationError, match="finite number"):
        Result.model_validate(make_data(correctness__losses=[value]))


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_does_not_know_is_refused_in_a_file(tmp_path, token):
    text = json.dumps(make_data(correctness__final_loss_mean=12345.0)).replace("12345.0", token)
    with pytest.raises(ResultFileError, match=r"correctness.final_loss_mean: Input should be a finite number"):
        read_result(written(tmp_path, text))


SECTIONS = ["workload", "environment", "outcome", "choices", "timing", "memory", "parameters", "correctness"]


@pytest.mark.parametrize("section", ["", *SECTIONS])
def test_an_unknown_key_is_refused_by_name(tmp_path, section):
    data = make_data()
    (data[section] if section else data)["surprise"] = 1
    with pytest.raises(ResultFileError, match=rf"{section}\.?surprise: Extra inputs are not permitted"):
        read_result(written(tmp_path, data))


def left_out(name: str) -> dict:
    """Return a result without one key."""
    data = make_data()
    *sections, leaf = name.split(".")
    target = data
    for section in sections:
        target = target[section]
    del target[leaf]
    return data


OUTCOME_DETAILS = [f"outcome.{name}" for name in Outcome.model_fields if name != "status"]
OPTIONAL = (*MEASURED, "responsibilities")
NO_DEFAULT = [
    name
    for name in leaves(make_data())
    if name not in (*OPTIONAL, *OUTCOME_DETAILS)
    and not name.startswith(("workload.model.", "environment.variables.", "choices.variables."))
]


@pytest.mark.parametrize("name", NO_DEFAULT)
def test_a_missing_key_is_refused_by_name(tmp_path, name):
    with pytest.raises(ResultFileError, match=f": {name}: Field required"):
        read_result(written(tmp_path, left_out(name)))


@pytest.mark.parametrize("name", MEASURED)
def test_a_completed_run_without_a_section_is_refused_by_its_name(tmp_path, name):
    with pytest.raises(ResultFileError, match=f"a completed run without {name}"):
        read_result(written(tmp_path, left_out(name)))


@pytest.mark.parametrize("name", FOUND_OUT)
def test_a_completed_run_that_never_found_out_its_workload_is_refused_by_name(tmp_path, name):
    with pytest.raises(ResultFileError, match=f"a completed run without workload.{name}"):
        read_result(written(tmp_path, make_data(**{f"workload__{name}": None})))


def test_what_is_missing_is_named_completely(tmp_path):
    data = make_data(timing=None, memory=None, workload__batch_sha256=None)
    with pytest.raises(ResultFileError, match=r"a completed run without timing, memory, workload.batch_sha256"):
        read_result(written(tmp_path, data))


@pytest.mark.parametrize("status", ["out_of_memory", "diverged", "out_of_sync", "untrained"])
def test_a_run_that_failed_needs_no_measurements(tmp_path, status):
    data = make_data(**OUT_OF_MEMORY | {"outcome__status": status})
    for name in MEASURED:
        del data[name]
    assert read_result(written(tmp_path, data)).timing is None


def test_the_details_of_an_outcome_may_be_left_out(tmp_path):
    data = make_data()
    data["outcome"] = {"status": "completed"}
    assert read_result(written(tmp_path, data)) == make_result()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timing__elapsed_seconds", "0.02"),
        ("timing__elapsed_seconds", None),
        ("timing__elapsed_seconds", -1.0),
        ("workload__world_size", "2"),
        ("workload__world_size", 2.0),
        ("workload__world_size", 0),
        ("workload__world_size", True),
        ("workload__steps", 1.5),
        ("correctness__every_shard_changed", 1),
        ("correctness__final_weights_sha256", "A" * 64),
        ("correctness__losses", []),
        ("workload__strategy", "fsdp1"),
        ("schema_version", "2.0"),
        ("outcome__status", "crashed"),
        ("outcome__step", 0),
        ("choices__zero_grad", "never"),
        ("timing__laps_milliseconds", []),
        ("memory__peak_allocated_gib", -1.0),
        ("memory__allocation_retries", 0.5),
        ("label", 7),
        ("implementation", "fabric"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(tmp_path, name, value):
    with pytest.raises(ResultFileError, match=f": {name.replace('__', '.')}: "):
        read_result(written(tmp_path, make_data(**{name: value})))


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(ResultFileError, match=r"missing.json: No such file"):
        read_result(tmp_path / "missing.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_a_file_that_is_no_result_is_named(tmp_path, text):
    with pytest.raises(ResultFileError, match=r"result.json: "):
        read_result(written(tmp_path, text))


# The file


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
@pytest.mark.parametrize("overwrite", [False, True])
def test_the_mode_of_the_file_follows_the_umask(tmp_path, umask, mode, overwrite):
    before = os.umask(umask)
    try:
        write_result(tmp_path / "result.json", make_result(), overwrite=overwrite)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "result.json").stat().st_mode) == mode


def test_a_file_that_appeared_during_the_run_is_left_as_it_is(tmp_path):
    (tmp_path / "result.json").write_bytes(b"precious")
    with pytest.raises(RunError, match="was written by somebody else during the run; it is left as it is"):
        write_result(tmp_path / "result.json", make_result(), overwrite=False)
    assert (tmp_path / "result.json").read_bytes() == b"precious"


def test_a_file_that_appears_at_the_last_moment_is_left_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    monkeypatch.setattr(os, "fsync", lambda descriptor: path.write_bytes(b"precious"))
    with pytest.raises(RunError, match="somebody else"):
        write_result(path, make_result(), overwrite=False)
    assert path.read_bytes() == b"precious"


def test_overwriting_replaces_the_file(tmp_path):
    (tmp_path / "result.json").write_bytes(b"old")
    write_result(tmp_path / "result.json", make_result(), overwrite=True)
    assert read_result(tmp_path / "result.json") == make_result()


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_but_the_result_is_left_in_the_folder(tmp_path, overwrite):
    write_result(tmp_path / "result.json", make_result(), overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


class TestFullDisk:
    @pytest.fixture(autouse=True)
    def full_disk(self, monkeypatch):
        def fail(descriptor):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", fail)

    def test_ends_the_run_with_the_reason(self, tmp_path):
        with pytest.raises(RunError, match=r"result.json could not be written: No space left on device") as error:
            write_result(tmp_path / "result.json", make_result(), overwrite=False)
        assert error.value.exit_code == 1

    def test_leaves_no_temporary_file(self, tmp_path):
        with pytest.raises(RunError):
            write_result(tmp_path / "result.json", make_result(), overwrite=False)
        assert list(tmp_path.iterdir()) == []

    def test_leaves_an_old_result_as_it_is(self, tmp_path):
        (tmp_path / "result.json").write_bytes(b"precious")
        with pytest.raises(RunError):
            write_result(tmp_path / "result.json", make_result(), overwrite=True)
        assert (tmp_path / "result.json").read_bytes() == b"precious"


def test_a_temporary_file_of_a_killed_run_does_not_stop_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic.os, "urandom", lambda size: b"first")
    monkeypatch.setattr(os, "getpid", lambda: 7)
    for name in (".result.json.7.tmp", ".result.json.tmp"):
        (tmp_path / name).touch()
    write_result(tmp_path / "result.json", make_result(), overwrite=False)
    assert read_result(tmp_path / "result.json") == make_result()


class TestWithoutHardLinks:
    @pytest.fixture(autouse=True)
    def no_links(self, monkeypatch):
        def fail(source, target):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        monkeypatch.setattr(os, "link", fail)

    def test_the_result_is_written_all_the_same(self, tmp_path):
        write_result(tmp_path / "result.json", make_result(), overwrite=False)
        assert read_result(tmp_path / "result.json") == make_result()

    def test_a_file_that_appeared_is_left_as_it_is(self, tmp_path):
        (tmp_path / "result.json").write_bytes(b"precious")
        with pytest.raises(RunError, match="somebody else"):
            write_result(tmp_path / "result.json", make_result(), overwrite=False)
        assert (tmp_path / "result.json").read_bytes() == b"precious"


def test_a_link_as_output_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "result.json").symlink_to(tmp_path / "elsewhere" / "real.json")
    write_result(tmp_path / "result.json", make_result(), overwrite=False)
    assert (tmp_path / "result.json").is_symlink()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_as_output_leads_to_the_result(tmp_path, overwrite):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "result.json").symlink_to(tmp_path / "elsewhere" / "real.json")
    write_result(tmp_path / "result.json", make_result(), overwrite=overwrite)
    assert read_result(tmp_path / "elsewhere" / "real.json") == make_result()


# The schema


@pytest.fixture(scope="module")
def schema() -> dict:
    return json.loads(SCHEMA_FILE.read_text())


def test_the_schema_in_docs_is_current():
    current = run([sys.executable, "-m", "common.result"], timeout=60).stdout
    assert SCHEMA_FILE.read_text() == current, "type: python -m common.result > docs/result.schema.json"


def test_the_schema_is_a_schema(schema):
    jsonschema.Draft202012Validator.check_schema(schema)


def test_the_schema_requires_every_leaf_but_what_only_some_outcomes_have(schema):
    parts = [schema, *schema["$defs"].values()]
    optional = [name for part in parts for name in part["properties"] if name not in part["required"]]
    assert sorted(optional) == sorted([*OPTIONAL, *(name.removeprefix("outcome.") for name in OUTCOME_DETAILS)])


def test_the_schema_explains_every_measurement(schema):
    saying_it_all = ("_per_second", "_per_step_p10", "_per_step_p90", "_per_step_min", "_per_step_max")
    silent = [
        name
        for part in ("Timing", "Memory", "Parameters", "Correctness")
        for name, leaf in schema["$defs"][part]["properties"].items()
        if "description" not in leaf and not name.endswith((*saying_it_all, "_gib_min"))
    ]
    assert silent == []


def test_the_schema_refuses_an_unknown_key_as_the_reader_does(schema):
    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        jsonschema.validate({**make_data(), "surprise": 1}, schema)


def test_the_schema_accepts_what_the_reader_accepts(schema):
    jsonschema.validate(make_data(), schema)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["native", "lightning"])
def test_a_real_result_follows_the_schema(runs, schema, implementation):
    jsonschema.validate(json.loads(runs(Cell(implementation, "fsdp2")).text), schema)
