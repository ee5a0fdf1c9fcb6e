"""Files that are no results, or hold what nobody should trust: what `compare.py show` makes of them."""

import codecs
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

import compare
from common.text import plain
from comparison.export import as_csv
from comparison.loading import load_runs
from comparison.pairing import pair_runs
from comparison.terminal import NARROWEST
from tests.factories import OUT_OF_MEMORY, make_data, save, timed
from tests.runs import ROOT, run, signals_restored

FORMATS = ("table", "markdown", "json", "csv")
GOOD = json.dumps(make_data())


def show(*arguments: Any, **environ: str) -> subprocess.CompletedProcess:
    """Run the command line, without colour unless asked for."""
    command = [sys.executable, "compare.py", "show", "--no-responsibilities", *map(str, arguments)]
    return run(command, timeout=60, **environ)


def with_text(old: str, new: str) -> str:
    """Return a good result with one piece of its text replaced."""
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def without(section: str, name: str) -> str:
    data = make_data()
    del data[section][name]
    return json.dumps(data)


def with_key(name: str) -> str:
    return json.dumps(make_data() | {name: 1})


def changed(**changes: Any) -> str:
    return json.dumps(make_data(**changes))


ELAPSED = '"elapsed_seconds": 0.02'

BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "the file is empty"),
    "only white space": (" \n", "the file is empty"),
    "cut off": (GOOD[:1000], "; the file was cut off"),
    "list": ("[]", "Input should be an object"),
    "null": ("null", "Input should be an object"),
    "text behind": (f"{GOOD} x", "Invalid JSON: trailing characters at line 1 column"),
    "comment": (f"// mine\n{GOOD}", "Invalid JSON: expected value at line 1 column 1"),
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "no UTF-8: byte 0x89 at position 0"),
    "zeros": (bytes(100), "UTF-16, UTF-32 or binary"),
    "utf-16": (GOOD.encode("utf-16"), "UTF-16, UTF-32 or binary"),
    "utf-16 without mark": (GOOD.encode("utf-16-le"), "UTF-16, UTF-32 or binary"),
    "utf-32": (GOOD.encode("utf-32"), "UTF-16, UTF-32 or binary"),
    "bom": (codecs.BOM_UTF8 + GOOD.encode(), "it starts with a byte order mark"),
    "latin-1": (with_text("a CPU", "a Prozeß").encode("latin-1"), "no UTF-8: byte 0xdf at position"),
    "surrogate": (with_text("a CPU", r"\ud800"), "Invalid JSON: unexpected end of hex escape at line 1 column"),
    "surrogate bytes": (with_text("a CPU", "\ud800").encode("utf-8", "surrogatepass"), "no UTF-8: byte 0xed at"),
    "missing key": (without("timing", "elapsed_seconds"), "timing.elapsed_seconds: Field required"),
    "missing version": (json.dumps({"implementation": "native"}), "schema_version: Field required"),
    "extra key": (with_key("surprise"), "surprise: Extra inputs are not permitted"),
    "extra key with controls": (with_key("\x1b[2J\n"), r"\x1b[2J\n: Extra inputs are not permitted"),
    "extra key of 5000": (with_key("k" * 5000), f"{'k' * 200}... (5,000 characters): Extra inputs are not permitted"),
    "newer major": (changed(schema_version="2.0"), "schema_version: 2.0 is newer than"),
    "newer minor": (changed(schema_version="1.999"), "schema_version: 1.999 is newer than"),
    "older": (changed(schema_version="0.9"), "schema_version: 0.9 is older than"),
    "no version": (changed(schema_version="\x1b[2J"), r'schema_version: should be 1.0, not "\u001b[2J"'),
    "version as number": (changed(schema_version=1), "schema_version: Input should be '1.0', not 1"),
    "nan": (
        with_text(ELAPSED, '"elapsed_seconds": NaN'),
        "timing.elapsed_seconds: Input should be a finite number, not NaN",
    ),
    "infinity": (
        with_text(ELAPSED, '"elapsed_seconds": -Infinity'),
        "timing.elapsed_seconds: Input should be a finite number, not -Infinity",
    ),
    "beyond floats": (
        with_text(ELAPSED, '"elapsed_seconds": 1e999'),
        "timing.elapsed_seconds: Input should be a finite number, not Infinity",
    ),
    "number as string": (
        changed(timing__elapsed_seconds="0.02"),
        'timing.elapsed_seconds: Input should be a valid number, not "0.02"',
    ),
    "negative time": (
        changed(timing__elapsed_seconds=-1.0),
        "timing.elapsed_seconds: Input should be greater than or equal to 0, not -1.0",
    ),
    "absurd time": (
        changed(timing__elapsed_seconds=1e16),
        "timing.elapsed_seconds: Input should be less than or equal to 1000000000000000, not 1e+16",
    ),
    "4000 digits": (
        with_text('"seed": 1234', f'"seed": {"9" * 4000}'),
        f"workload.seed: Input should be less than or equal to {2**64 - 1}, not {'9' * 80}... (4,000 characters)",
    ),
    "5000 digits": (with_text('"seed": 1234', f'"seed": {"9" * 5000}'), "Invalid JSON: number out of range at line 1"),
    "too few losses": (
        changed(correctness__losses=[2.75, 2.5]),
        "timing.laps_milliseconds has 2 entries and correctness.losses 2, for 1 warm-up steps and 2 timed ones",
    ),
    "too many laps": (changed(timing__laps_milliseconds=[10.0] * 3), "timing.laps_milliseconds has 3 entries"),
    "key twice": (with_text(ELAPSED, f"{ELAPSED}, {ELAPSED}"), "timing.elapsed_seconds: the key is there twice"),
    "key twice at the top": (f'{{"label": "x", {GOOD[1:]}', "label: the key is there twice"),
    "key twice by escape": (f'{{"l\\u0061bel": "x", {GOOD[1:]}', "label: the key is there twice"),
    "many keys": (
        json.dumps({"environment": {f"k{number}": 1 for number in range(1001)}}),
        "environment: 1,001 keys in one object; at most 1,000 are read",
    ),
    "string without end": (changed(label="x" * 200_000), "label: String should have at most 131072 characters, not"),
    "deep list": ("[" * 100_000, "Invalid JSON: recursion limit exceeded"),
    "deep object": ('{"a":' * 100_000, "Invalid JSON: recursion limit exceeded"),
    "deep value": (
        with_text('"a CPU"', "[" * 900 + "]" * 900),
        "Invalid JSON: recursion limit exceeded at line 1 column",
    ),
}  # fmt: skip
"""What is in the file, and what the message says of it."""


@pytest.fixture
def good(tmp_path):
    """A folder with a pair that can be compared."""
    folder = tmp_path / "good"
    folder.mkdir()
    for implementation in ("native", "lightning"):
        save(folder, f"{implementation}.json", implementation)
    return folder


def assert_refused(shown: subprocess.CompletedProcess, name: str, reason: str) -> None:
    """Check that there is exit code 1, one line with name and reason, and the good pair."""
    assert shown.returncode == compare.FAILED
    (line,) = shown.stderr.splitlines()
    assert line.startswith("compare.py: ")
    assert f"{name}: {reason}" in line or (f"{name}: " in line and line.endswith(reason))
    assert "milliseconds_per_step" in shown.stdout


def shown_in_process(capsys, *arguments: Any) -> subprocess.CompletedProcess:
    """Do the same without a process of its own, for the many cases."""
    with signals_restored():
        code = compare.main(["show", "--no-responsibilities", *map(str, arguments)])
    captured = capsys.readouterr()
    return subprocess.CompletedProcess(arguments, code, captured.out, captured.err)


class TestFileThatIsNoResult:
    @pytest.mark.parametrize("case", BAD_FILES)
    def test_is_named_with_key_and_reason_and_the_good_ones_are_shown(self, capsys, tmp_path, good, case):
        content, reason = BAD_FILES[case]
        bad = tmp_path / "bad.json"
        bad.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert_refused(shown_in_process(capsys, good, bad), "bad.json", reason)

    @pytest.mark.parametrize("style", FORMATS)
    def test_does_not_spoil_a_document(self, tmp_path, good, style):
        paths = []
        for number, (content, _) in enumerate(BAD_FILES.values()):
            paths.append(tmp_path / f"{number}.json")
            paths[-1].write_bytes(content if isinstance(content, bytes) else content.encode())
        shown, clean = show("--format", style, good, *paths), show("--format", style, good)
        assert (shown.returncode, shown.stdout) == (1, clean.stdout)
        assert len(shown.stderr.splitlines()) == len(BAD_FILES)
        assert all(str(path) in line for path, line in zip(paths, shown.stderr.splitlines(), strict=True))


class TestPathThatIsNoFile:
    def test_an_empty_folder_is_named(self, capsys, tmp_path, good):
        (tmp_path / "empty.json").mkdir()
        assert_refused(
            shown_in_process(capsys, good, tmp_path / "empty.json"), "empty.json", "no *.json in this folder"
        )

    def test_a_folder_named_like_a_file_is_no_file_of_the_folder_around_it(self, capsys, good):
        (good / "folder.json").mkdir()
        assert shown_in_process(capsys, good).returncode == compare.COMPARED

    def test_a_pipe_without_a_writer_is_not_waited_for(self, tmp_path, good):
        os.mkfifo(tmp_path / "pipe.json")
        assert_refused(show(good, tmp_path / "pipe.json"), "pipe.json", "no regular file")

    def test_a_pipe_in_a_folder_is_not_waited_for(self, good):
        os.mkfifo(good / "pipe.json")
        assert_refused(show(good), "pipe.json", "no regular file")

    def test_a_device_without_an_end_is_not_read(self, good):
        assert_refused(show(good, "/dev/zero"), "/dev/zero", "no regular file")

    @pytest.mark.parametrize("target", ["circle.json", "nowhere.json"])
    def test_a_link_that_leads_nowhere_is_named(self, capsys, good, target):
        (good / "circle.json").symlink_to(target)
        reason = "Too many levels of symbolic links" if target == "circle.json" else "No such file or directory"
        assert_refused(shown_in_process(capsys, good), "circle.json", reason)

    def test_a_name_that_is_too_long_for_a_file_is_named(self, capsys, good):
        assert_refused(shown_in_process(capsys, good, "x" * 5000), "x", "File name too long")

    def test_a_large_file_is_refused_at_once_and_with_little_memory(self, tmp_path, good):
        with open(tmp_path / "large.json", "wb") as file:
            file.truncate(200 * 2**20)
        code = (
            "import compare, re, sys; code = compare.main(sys.argv[1:]);"
            "print(int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1]) // 1024,"
            "file=sys.stderr);"
            "sys.exit(code)"
        )
        started = time.monotonic()
        shown = run(
            [sys.executable, "-c", code, "show", "--no-responsibilities", str(good), str(tmp_path / "large.json")]
        )
        message, mebibytes = shown.stderr.splitlines()
        assert message.endswith("large.json: 200 MiB, more than the 16 MiB that are read of a result")
        assert shown.returncode == compare.FAILED
        assert int(mebibytes) < 150
        assert time.monotonic() - started < 30

    def test_many_unknown_keys_are_refused_at_once(self, tmp_path, good):
        text = json.dumps(make_data() | {f"k{number}": 1 for number in range(500_000)})
        (tmp_path / "keys.json").write_text(text)
        started = time.monotonic()
        assert_refused(show(good, tmp_path / "keys.json"), "keys.json", "500,012 keys in one object")
        assert time.monotonic() - started < 30


class TestFileName:
    NAME = "\x1b[31m\x1b]0;t\x07\n\x9b\u202e\u200b\udcff[b].json"
    VISIBLE = r"\x1b[31m\x1b]0;t\x07\n\x9b\u202e\u200b\udcff[b].json"

    def test_is_printed_with_its_controls_visible_where_the_file_is_refused(self, good):
        (good / self.NAME).write_text("[]")
        assert_refused(show(good), self.VISIBLE, "Input should be an object")

    @pytest.mark.parametrize("style", FORMATS)
    def test_never_reaches_the_terminal_from_a_good_file(self, good, style):
        (good / "native.json").rename(good / self.NAME)
        shown = show("--format", style, good)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert_printable(shown.stdout)

    def test_is_shown_in_full_where_runs_are_not_comparable(self, good):
        (good / "native.json").rename(good / self.NAME)
        (good / "lightning.json").write_text(json.dumps(make_data("lightning", workload__seed=7)))
        shown = show(good)
        assert shown.returncode == compare.NOT_COMPARABLE
        assert self.VISIBLE in shown.stdout.replace("\n", "")


def assert_printable(text: str) -> None:
    assert not {char for char in text if not char.isprintable()} - {"\n"}


HOSTILE = {
    "markup": ("[bold]x[/nope] :smile: [link=http://x]", "[bold]x[/nope] :smile: [link=http://x]"),
    "ansi": ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
    "osc": ("\x1b]8;;http://x\x07y\x1b]8;;\x07", r"\x1b]8;;http://x\x07y\x1b]8;;\x07"),
    "c1": ("\x9b31m\x85", r"\x9b31m\x85"),
    "lines": ("a\nb\r\tc\x0b\u2028", r"a\nb\r\tc\x0b\u2028"),
    "direction": ("\u202egpj.exe\u2066", r"\u202egpj.exe\u2066"),
    "zero width": ("a\u200b\u200d\ufeff\u2060b", r"a\u200b\u200d\ufeff\u2060b"),
    "combining": ("e\u0301\u0336", r"e\u0301\u0336"),
    "fillers": ("\u3164\u115f\u2800", r"\u3164\u115f\u2800"),
    "delete": ("\x7f\x00", r"\x7f\x00"),
    "wide": ("漢字" * 60, "漢字" * 60),
    "5000 characters": ("x" * 5000, "x" * 5000),
}

FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "environment.device_name": lambda text: {"environment__device_name": text},
    "environment.hosts": lambda text: {"environment__hosts": [text]},
    "environment.variables": lambda text: {"environment__variables": {"NCCL_DEBUG": text}},
    "workload.preset": lambda text: {"workload__preset": text},
    "outcome.message": lambda text: (
        {**OUT_OF_MEMORY, "outcome__requested_gib": None, "outcome__free_gib": None} | {"outcome__message": text}
    ),
}
"""Where a string from a file is shown, as changes to a good result."""


class TestStringOfAFile:
    """Shown literally, in a table that stays whole. The native run has it, so that a difference is shown too."""

    def write(self, folder: Path, field: str, text: str) -> Path:
        changes = FIELDS[field](text)
        both = field == "workload.preset"  # it must be equal on both sides
        for implementation in ("native", "lightning"):
            data = make_data(implementation, **(changes if both or implementation == "native" else {}))
            (folder / f"{implementation}.json").write_text(json.dumps(data))
        return folder

    @pytest.mark.parametrize("kind", HOSTILE)
    @pytest.mark.parametrize("field", FIELDS)
    def test_is_literal_and_the_table_is_whole(self, capsys, monkeypatch, tmp_path, field, kind):
        monkeypatch.setenv("COLUMNS", "80")
        text, visible = HOSTILE[kind]
        if field == "environment.hosts":  # a list, which is shown as JSON with escapes of its own
            visible = plain(json.dumps(text, ensure_ascii=False))
        shown = shown_in_process(capsys, self.write(tmp_path, field, text))
        assert_printable(shown.stdout)
        assert re.sub(r"\s", "", visible) in re.sub(r"\s", "", shown.stdout)
        assert max(cell_len(line) for line in shown.stdout.splitlines()) <= 80
        if field != "outcome.message":
            assert re.search(r"^milliseconds_per_step +10.0 +10.0 +equal +1.00$", shown.stdout, re.M)

    @pytest.mark.parametrize("style", FORMATS[1:])
    @pytest.mark.parametrize("kind", HOSTILE)
    def test_is_harmless_in_a_document(self, capsys, tmp_path, kind, style):
        text, visible = HOSTILE[kind]
        shown = shown_in_process(capsys, "--format", style, self.write(tmp_path, "workload.preset", text))
        assert shown.returncode == 0
        assert_printable(shown.stdout)
        if style == "json":
            assert json.loads(shown.stdout)["pairs"][0]["workload"]["preset"] == text
        else:
            assert visible in re.sub(r"\\([^\w\s])", r"\1", shown.stdout) or visible in shown.stdout

    @pytest.mark.parametrize("width", ["40", "60", "80", "200"])
    def test_hides_no_other_column_of_a_mismatch(self, capsys, monkeypatch, tmp_path, width):
        monkeypatch.setenv("COLUMNS", width)
        for implementation, letter in (("native", "N"), ("lightning", "L")):
            data = make_data(implementation, workload__preset=letter * 5000, workload__seed=ord(letter))
            (tmp_path / f"{implementation}.json").write_text(json.dumps(data))
        shown = shown_in_process(capsys, tmp_path)
        assert shown.returncode == compare.NOT_COMPARABLE
        table = shown.stdout[shown.stdout.index("field") :]
        assert (table.count("N"), table.count("L")) == (5000, 5000)
        assert re.search(r"^seed +78 +76$", table, re.M)

    def test_of_a_key_is_literal_in_a_mismatch(self, capsys, tmp_path):
        key = "\x1b[2J|" + "k" * 5000
        for implementation in ("native", "lightning"):
            wrap = {key: implementation == "native"}
            data = make_data(implementation, workload__reshard_after_forward=wrap)
            (tmp_path / f"{implementation}.json").write_text(json.dumps(data))
        for style in ("table", "markdown"):
            shown = shown_in_process(capsys, "--format", style, tmp_path)
            assert_printable(shown.stdout)
            assert "true" in shown.stdout
            assert "false" in shown.stdout
            assert shown.stdout.count("k") >= 5000
            rows = [line for line in shown.stdout.splitlines() if line.startswith("|")]
            assert all(line.replace(r"\|", "").count("|") == 4 for line in rows)

    @pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1"])
    def test_is_no_formula_for_a_spreadsheet(self, tmp_path, text):
        self.write(tmp_path, "workload.preset", text)
        cells = {line.split(",")[2] for line in as_csv(pair_runs(load_runs([tmp_path])[0])).splitlines()[1:]}
        (cell,) = cells
        assert not cell.lstrip().startswith(("=", "+", "-", "@"))
        assert cell.endswith(text.strip())

    def test_negative_numbers_stay_numbers_in_csv(self, tmp_path):
        save(tmp_path, "n.json", "native", **timed(20.0))
        save(tmp_path, "l.json", "lightning", **timed(10.0))
        text = as_csv(pair_runs(load_runs([tmp_path])[0]))
        assert ",milliseconds_per_step,20.0,10.0,-10.0,0.5\n" in text


class TestEvidenceOfAFile:
    """What a run says it saw is shown in the table of responsibilities."""

    HOSTILE = "\x1b]0;t\x07\u202e|" + "f" * 200

    @pytest.mark.parametrize("style", ["table", "markdown", "json"])
    def test_is_literal_wherever_it_is_shown(self, capsys, tmp_path, style):
        evidence = {
            "evidence": [
                {"phase": "step", "call": "backward", "count": 1, "frames": [f"native/train.py:1 {self.HOSTILE}"]},
                {"phase": "step", "call": self.HOSTILE, "count": 1, "frames": [f"native/train.py:1 {self.HOSTILE}"]},
            ],
            "step": {
                "step": 2,
                "collectives_of_strategy": {self.HOSTILE: 1},
                "collectives_of_others": {},
                "host_syncs": 0,
                "ddp_buckets": None,
            },
        }
        save(tmp_path, "n.json", "native", responsibilities=evidence)
        save(tmp_path, "l.json", "lightning")
        with signals_restored():
            compare.main(["responsibilities", "--format", style, str(tmp_path)])
        captured = capsys.readouterr()
        assert_printable(captured.out + captured.err)
        assert captured.out.count("f" * 10) > 0

    def test_with_a_line_number_beyond_all_bounds_is_refused(self, capsys, tmp_path, good):
        place = f"native/train.py:{'9' * 5000} train"
        evidence = {"evidence": [{"phase": "step", "call": "backward", "count": 1, "frames": [place]}]}
        (tmp_path / "bad.json").write_text(changed(responsibilities=evidence))
        shown = shown_in_process(capsys, good, tmp_path / "bad.json")
        assert_refused(
            shown, "bad.json", "responsibilities.evidence.0.frames.0: String should have at most 400 characters"
        )


class TestNumbersAtTheEdge:
    @pytest.mark.parametrize("style", FORMATS)
    @pytest.mark.parametrize(
        ("baseline", "other"),
        [(0.0, 1.0), (0.0, 0.0), (5e-324, 1e15), (1e15, 5e-324), (1e-170, 2e-170), (1e15, 1e15)],
    )
    def test_times_from_nothing_to_the_bound_are_shown(self, capsys, tmp_path, baseline, other, style):
        for number, factor in enumerate((1.0, 0.5, 0.25)):
            for implementation, value in (("native", baseline), ("lightning", other)):
                changes = {f"timing__milliseconds_per_step{end}": value * factor for end in ("", "_median")}
                changes["environment__started_at"] = f"2026-12-01T00:00:0{number}+00:00"
                save(tmp_path, f"{implementation}{number}.json", implementation, **changes)
        shown = shown_in_process(capsys, "--format", style, tmp_path)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "milliseconds_per_step" in shown.stdout

    @pytest.mark.parametrize("style", FORMATS)
    def test_losses_at_both_ends_of_the_floats_are_shown(self, capsys, tmp_path, style):
        for implementation, sign in (("native", 1), ("lightning", -1)):
            value = sign * sys.float_info.max
            changes = {"correctness__losses": [value] * 3, "correctness__final_loss_mean": value}
            save(tmp_path, f"{implementation}.json", implementation, **changes)
        shown = shown_in_process(capsys, "--format", style, tmp_path)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "inf" not in shown.stdout.replace("findings", "")

    def test_a_run_without_time_gets_no_ratio_and_no_verdict(self, capsys, tmp_path):
        save(tmp_path, "n.json", "native", **timed(0.0))
        save(tmp_path, "l.json", "lightning")
        shown = shown_in_process(capsys, tmp_path)
        assert re.search(r"^milliseconds_per_step +0\.?0* +10\.?0* +\+10\.?0* +n/a$", shown.stdout, re.M)
        assert "no verdict: a run measured no time at all" in " ".join(shown.stdout.split())

    @pytest.mark.parametrize("status", ["out_of_memory", "diverged", "out_of_sync", "untrained"])
    def test_a_run_that_failed_is_shown_with_its_outcome(self, capsys, tmp_path, status):
        save(tmp_path, "n.json", "native", **OUT_OF_MEMORY | {"outcome__status": status})
        save(tmp_path, "l.json", "lightning")
        shown = shown_in_process(capsys, tmp_path)
        assert shown.returncode == (0 if status == "out_of_memory" else 1)
        assert f"native: {status} in step 1 (warmup) on rank 1" in shown.stdout


class TestTerminal:
    @pytest.fixture
    def folder(self, tmp_path):
        """A pair with a name beyond every encoding but Unicode's, a warning and long numbers."""
        large = {"workload__global_parameter_count": 634903040, "parameters__local_parameter_elements": 634903040}
        device = {"environment__device_name": "Größe 漢字"}
        save(tmp_path, "n.json", "native", **timed(1234.5678), **large, **device)
        save(tmp_path, "l.json", "lightning", **timed(2345.6789), **large, **device, environment__cpu_threads=1)
        return tmp_path

    @pytest.mark.parametrize("columns", ["0", "1", "40", "60", "80", "200", "many", "-5"])
    def test_of_any_width_cuts_no_number_and_no_name(self, folder, columns):
        shown = show(folder, COLUMNS=columns)
        assert shown.returncode == 0
        width = max(int(columns), NARROWEST) if columns.isdigit() else 80
        assert max(cell_len(line) for line in shown.stdout.splitlines()) <= width
        assert "…" not in shown.stdout
        words = ("milliseconds_per_step_median", "parameter_checksum_squared_sum", "634,903,040", "1,230", "2,350")
        assert all(word in (shown.stdout if width >= 40 else re.sub(r"\s", "", shown.stdout)) for word in words)

    @pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8", "utf-16", "cp437"])
    @pytest.mark.parametrize("style", FORMATS)
    def test_of_any_encoding_gets_all_of_it(self, folder, encoding, style):
        command = [sys.executable, "compare.py", "show", "--format", style, str(folder)]
        environ = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "80"}
        shown = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, timeout=60, check=False)
        assert (shown.returncode, shown.stderr.decode(encoding)) == (0, "")
        text = shown.stdout.decode(encoding)
        assert "milliseconds_per_step" in text
        if style == "table":
            assert max(cell_len(line) for line in text.splitlines()) <= 80
            assert ("漢字" if encoding.startswith("utf") else r"\u6f22\u5b57") in text

    def test_of_the_c_locale_gets_all_of_it(self, folder):
        shown = show(folder, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert r"Gr\xf6\xdfe \u6f22\u5b57" in shown.stdout

    def test_without_colours_gets_none(self, folder):
        plain = show(folder).stdout
        assert "\x1b" not in plain
        assert show(folder, NO_COLOR="1").stdout == plain
        assert show(folder, TERM="dumb").stdout == plain

    def test_with_colours_gets_the_same_words(self, folder):
        coloured = show(folder, FORCE_COLOR="1", TERM="xterm-256color").stdout
        assert "\x1b[" in coloured
        assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == show(folder).stdout

    @pytest.mark.parametrize("style", FORMATS)
    def test_that_closes_early_ends_it_quietly_as_a_shell_expects(self, folder, style):
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, "compare.py", "show", "--format", style, str(folder)]
        with os.fdopen(writing, "wb") as pipe:
            shown = subprocess.run(command, cwd=ROOT, stdout=pipe, stderr=subprocess.PIPE, timeout=60, check=False)
        assert (shown.returncode, shown.stderr) == (compare.READER_LEFT, b"")

    @pytest.mark.parametrize("style", FORMATS)
    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
    def test_whose_disk_is_full_gets_one_line_and_exit_code_1(self, folder, style):
        command = [sys.executable, "compare.py", "show", "--format", style, str(folder)]
        with open("/dev/full", "wb") as full:
            shown = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
        assert shown.returncode == compare.FAILED
        assert shown.stderr == b"compare.py: error: the output could not be written: No space left on device\n"


class TestWhatAResultNames:
    """Paths in a result are never followed, and nothing in it is unpickled or run."""

    AUDITED = """
import os, sys
trap = os.fsencode(sys.argv.pop(1))
def audit(event, arguments):
    paths = [os.fsencode(each) for each in arguments if isinstance(each, (str, bytes, os.PathLike))]
    if any(trap in path for path in paths) or event.startswith(("pickle.", "subprocess.", "socket.", "os.exec")):
        print("AUDIT", event, paths, file=sys.stderr)
from common.result import Result
import comparison.export, comparison.tables, rich.console
Result.model_rebuild()
sys.addaudithook(audit)
import compare
sys.exit(compare.main(sys.argv[1:]))
"""

    @pytest.mark.parametrize("style", FORMATS)
    def test_is_not_opened_unpickled_or_run(self, tmp_path, style):
        traps, results = tmp_path / "traps", tmp_path / "results"
        traps.mkdir()
        results.mkdir()
        os.mkfifo(traps / "pipe")
        (traps / "file.json").write_text(GOOD)
        for implementation in ("native", "lightning"):
            for trap in ("pipe", "file.json"):
                path = str(traps / trap)
                changes = {
                    "workload__preset": path,
                    "environment__device_name": path,
                    "environment__command": [path, f"file://{path}"],
                    "environment__hosts": [path],
                    "environment__platform": path,
                    "environment__variables": {"LD_PRELOAD": path, "NCCL_TOPO_FILE": path},
                }
                save(results, f"{implementation}-{trap}.json", implementation, **changes)
        command = [sys.executable, "-c", self.AUDITED, str(traps), "show", "--no-responsibilities", "--format", style]
        shown = run([*command, str(results)], timeout=60)
        assert (shown.returncode, shown.stderr) == (0, "")

    def test_is_seen_by_this_audit_where_it_is_opened(self, tmp_path):
        (tmp_path / "trap.json").write_text(GOOD)
        command = [sys.executable, "-c", self.AUDITED, str(tmp_path), "show", "--no-responsibilities"]
        assert "AUDIT open" in run([*command, str(tmp_path / "trap.json")], timeout=60).stderr
