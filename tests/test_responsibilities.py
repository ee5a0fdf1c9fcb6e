"""The responsibilities: what is claimed stands in the live source, and is shown whole at any width."""

import ast
import io
import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from rich.console import Console

from comparison import responsibility_table, source
from comparison.catalogue import CATALOGUE
from comparison.responsibilities import Owner, Responsibility, summary
from comparison.source import Place, PlaceNotFound, locate
from comparison.terminal import NARROWEST

REQUIRED = (
    "launching", "rank discovery", "device binding", "process group", "device mesh", "model creation",
    "parameter materialisation", "DDP wrap", "FSDP2 wrap", "mixed precision, DDP", "mixed precision, FSDP2",
    "batch sharding", "optimizer construction", "train mode", "training loop", "zero_grad", "forward and loss",
    "backward", "optimizer step", "barriers", "metric reduction", "timing", "rank-zero output", "teardown",
    "SIGTERM broadcast", "signal handlers", "startup barriers", "hooks and callbacks", "batch fetch",
)  # fmt: skip
OWNERS = [(each.name, owner) for each in CATALOGUE for owner in (each.native, each.lightning)]
PLACES = list(dict.fromkeys(place for _, owner in OWNERS for place in owner.places))
BY_NAME = {each.name: each for each in CATALOGUE}

AUTOMATIC = "lightning/pytorch/loops/optimization/automatic.py"
MODEL_PARALLEL = "lightning/pytorch/strategies/model_parallel.py"
POPEN_LAUNCHER = "lightning/pytorch/strategies/launchers/subprocess_script.py"
DISTRIBUTED = "lightning/fabric/utilities/distributed.py"
CLAIMS = {
    "autocast does not cache": (
        "lightning/pytorch/plugins/precision/amp.py",
        "MixedPrecision.autocast_context_manager",
        "cache_enabled=False",
    ),
    "a metric's reduction has a barrier": (DISTRIBUTED, "_sync_ddp", "torch.distributed.barrier(group=group)"),
    "FSDP2 has no launcher object under torchrun": (
        MODEL_PARALLEL,
        "ModelParallelStrategy._configure_launcher",
        "if not self.cluster_environment.creates_processes_externally:",
    ),
    "DDP always has a launcher object": (
        "lightning/pytorch/strategies/ddp.py",
        "DDPStrategy._configure_launcher",
        'if self._start_method == "popen":\n            self._launcher = _SubprocessScriptLauncher(',
    ),
    "the launcher object compares devices and nodes": (
        POPEN_LAUNCHER,
        "_SubprocessScriptLauncher.launch",
        "self.cluster_environment.validate_settings(",
    ),
    "the launcher object limits CPU threads": (
        POPEN_LAUNCHER,
        "_SubprocessScriptLauncher.launch",
        "_set_num_threads_if_needed(",
    ),
    "FSDP2's default is one tensor-parallel group a node": (
        MODEL_PARALLEL,
        "ModelParallelStrategy.setup_environment",
        "self._tensor_parallel_size = self.num_processes",
    ),
    "materialisation needs reset_parameters": (
        "lightning/fabric/utilities/init.py",
        "_materialize_distributed_module",
        'getattr(submodule, "reset_parameters", None)',
    ),
    "the sampler shuffles": (
        "lightning/pytorch/trainer/connectors/data_connector.py",
        "_process_dataloader",
        "is_shuffled = True",
    ),
    "the SIGTERM broadcast is for more than one rank": (
        "lightning/pytorch/loops/training_epoch_loop.py",
        "_TrainingEpochLoop.advance",
        "self.trainer.world_size > 1:\n            self._broadcast_sigterm_tensor()",
    ),
}


def named(place: Place) -> str:
    return f"{place.file}:{place.function}:{place.contains}"


@cache
def bodies(path: Path) -> dict[str, list[tuple[int, int]]]:
    """Return first and last line of every function's body without its docstring, by qualified name, as ast sees it."""
    found: dict[str, list[tuple[int, int]]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}".lstrip(".")
                statements = child.body[1:] if ast.get_docstring(child) is not None else child.body
                if statements:
                    found.setdefault(name, []).append((statements[0].lineno, child.end_lineno))
            visit(child, name)

    visit(ast.parse(path.read_text(encoding="utf-8")), "")
    return found


@pytest.mark.parametrize("place", PLACES, ids=named)
def test_a_place_is_a_line_of_the_named_function_that_holds_the_statement(place):
    location = locate(place)
    line = location.path.read_text(encoding="utf-8").splitlines()[location.line - 1]
    assert place.contains in line
    assert not line.lstrip().startswith("#")
    assert any(first <= location.line <= last for first, last in bodies(location.path)[place.function])


@pytest.mark.parametrize("place", PLACES, ids=named)
def test_no_earlier_line_of_the_function_holds_the_statement_too(place):
    location = locate(place)
    lines = location.path.read_text(encoding="utf-8").splitlines()
    first = min(first for first, last in bodies(location.path)[place.function] if first <= location.line <= last)
    earlier = [line for line in lines[first - 1 : location.line - 1] if not line.lstrip().startswith("#")]
    assert not any(place.contains in line for line in earlier)


@pytest.mark.parametrize(("file", "function", "contains"), CLAIMS.values(), ids=CLAIMS)
def test_what_a_note_says_about_lightning_stands_in_its_source(file, function, contains):
    location = locate(Place("lightning", file, function, contains))
    assert any(first <= location.line <= last for first, last in bodies(location.path)[function])


def test_lightning_zeroes_between_forward_and_backward():
    statements = ("step_output = self._step_fn()", "self._zero_grad_fn()", "self._backward_fn(step_output")
    lines = [locate(Place("lightning", AUTOMATIC, "Closure.closure", statement)).line for statement in statements]
    assert lines == sorted(lines)


def test_lightning_destroys_the_process_group_at_exit_for_nccl_only():
    condition = Place("lightning", DISTRIBUTED, "_init_dist_connection", 'if torch_distributed_backend == "nccl":')
    hook = locate(BY_NAME["teardown"].lightning.places[1])
    lines = hook.path.read_text(encoding="utf-8").splitlines()
    guarded = lines[locate(condition).line : hook.line]
    assert guarded[-1].strip() == "atexit.register(_destroy_dist_connection)"
    assert all(line.startswith(" " * 8) for line in guarded)


def test_native_zeroes_before_the_forward():
    zero = BY_NAME["zero_grad"].native.places[0]
    forward = BY_NAME["forward and loss"].native.places[0]
    assert locate(zero).line < locate(forward).line


@pytest.mark.parametrize("name", REQUIRED)
def test_a_required_duty_is_in_the_catalogue(name):
    assert name in BY_NAME


def test_no_duty_is_listed_twice():
    assert len(BY_NAME) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("process group", "moved"),
        ("device mesh", "moved"),
        ("mixed precision, DDP", "moved"),
        ("mixed precision, FSDP2", "stays"),
        ("FSDP2 wrap", "stays"),
        ("timing", "stays"),
        ("teardown", "stays"),
        ("train mode", "dropped"),
        ("launching", "same"),
        ("SIGTERM broadcast", "added"),
    ],
)
def test_a_duty_changes_as_its_owners_say(name, change):
    assert BY_NAME[name].change == change


@pytest.mark.parametrize(("name", "owner"), OWNERS, ids=[f"{name}-{owner.who}" for name, owner in OWNERS])
def test_an_owner_has_places_in_its_own_source(name, owner):
    folders = {place.file.split("/")[0] for place in owner.places}
    if owner.who == "launcher":
        assert not folders
    elif owner.who == "nobody":
        assert folders <= {"lightning"}
    else:
        assert owner.who in folders


@pytest.mark.parametrize(("name", "owner"), OWNERS, ids=[f"{name}-{owner.who}" for name, owner in OWNERS])
def test_a_description_is_short_and_needs_no_more_than_ascii(name, owner):
    assert len(owner.what) <= 60
    assert (name + owner.what + BY_NAME[name].note).isascii()


@pytest.mark.parametrize(
    ("file", "function", "contains"),
    [
        ("native/gone.py", "train", "optimizer.step()"),
        ("native/train.py", "Gone.train", "optimizer.step()"),
        ("native/train.py", "trai", "optimizer.step()"),
        ("native/train.py", "training_step", "optimizer.leap()"),
        ("native/train.py", "train", "loss.backward()"),  # in the file, but in another function
        ("native/train.py", "training_step", "Forward, backward, update."),  # in the docstring
    ],
)
def test_a_place_that_is_gone_is_an_error_that_names_it(file, function, contains):
    with pytest.raises(PlaceNotFound) as caught:
        locate(Place("project", file, function, contains))
    message = str(caught.value)
    assert file in message
    assert function in message
    assert contains in message


SOURCE = '''
class First:
    def act(self):
        wanted()


@decorated
class Second:
    """wanted() is not here"""

    @overload
    def act(self, value: int) -> int: ...

    @property
    def act(
        self,
        value: dict[str, int] = {"a": 1},  # wanted()
    ) -> "Second":
        r"""Say wanted()
        twice.
        """
        # wanted()
        if value:

            return None
# a comment at the margin ends nothing
        return wanted()

    @act.setter
    def act(self, value): set_it()

    async def later(self):
        class Inner:
            def act(self):
                wanted(1)
        wanted(2)

def acting():
    wanted(0)

def act():
    wanted(3)
'''


def found_in(tmp_path, monkeypatch, function: str, contains: str = "wanted(") -> str:
    (tmp_path / "source.py").write_text(SOURCE)
    monkeypatch.setattr(source, "PROJECT_ROOT", tmp_path)
    location = locate(Place("project", "source.py", function, contains))
    return SOURCE.splitlines()[location.line - 1].strip()


@pytest.mark.parametrize(
    ("function", "line"),
    [
        ("Second.act", "return wanted()"),
        ("Second.later", "wanted(1)"),
        ("Second.later.Inner.act", "wanted(1)"),
        ("act", "wanted(3)"),
        ("First.act", "wanted()"),
    ],
)
def test_a_function_is_told_from_others_of_its_name_and_from_its_signature_docstring_and_comments(
    tmp_path, monkeypatch, function, line
):
    assert found_in(tmp_path, monkeypatch, function) == line


def test_a_class_of_that_name_without_that_method_is_no_match(tmp_path, monkeypatch):
    with pytest.raises(PlaceNotFound, match=r"First\.later.*no such function"):
        found_in(tmp_path, monkeypatch, "First.later")


def test_a_place_follows_its_statement_when_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "PROJECT_ROOT", tmp_path)
    file, place = tmp_path / "source.py", Place("project", "source.py", "act", "wanted()")
    file.write_text("def act():\n    wanted()\n")
    assert locate(place).line == 2
    file.write_text("\n\ndef act():\n    wanted()\n")
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    assert locate(place).line == 4


def run_python(code: str, *options: str, cwd: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(source.PROJECT_ROOT), "COLUMNS": "80"}
    command = [sys.executable, *options, "-c", code]
    result = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_locating_everything_imports_neither_torch_nor_lightning_nor_rich():
    code = (
        "import sys\nfrom comparison.catalogue import CATALOGUE\nfrom comparison.source import locate\n"
        "found = [locate(p) for r in CATALOGUE for o in (r.native, r.lightning) for p in o.places]\n"
        "print(all(found), sorted({'torch', 'lightning', 'rich'} & set(sys.modules)))"
    )
    assert run_python(code) == "True []"


def test_showing_the_table_imports_neither_torch_nor_lightning():
    code = (
        "import sys\nfrom rich.console import Console\nfrom comparison.responsibility_table import render\n"
        "render(Console())\nprint(sorted({'torch', 'lightning'} & set(sys.modules)))"
    )
    assert run_python(code).endswith("\n[]")


@pytest.mark.parametrize("folder", ["elsewhere", "lightning"])
def test_without_lightning_its_places_are_none_even_if_a_folder_bears_its_name(tmp_path, folder):
    (tmp_path / folder).mkdir()
    code = (
        "from comparison.catalogue import CATALOGUE\nfrom comparison.source import locate\n"
        "places = [p for r in CATALOGUE for o in (r.native, r.lightning) for p in o.places]\n"
        "print({(p.package, locate(p) is None) for p in places} == {('project', False), ('lightning', True)})"
    )
    assert run_python(code, "-S", cwd=tmp_path) == "True"  # -S: without site-packages


@pytest.fixture
def no_lightning(monkeypatch):
    for module in (source, responsibility_table):
        monkeypatch.setattr(module, "lightning_root", lambda: None)


def rendered(width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    responsibility_table.render(console)
    return console.file.getvalue()


def columns(text: str) -> list[list[str]]:
    """Return the lines of the table's three columns, without padding."""
    lines = text.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("Duty"))
    starts = [lines[head].index(heading) for heading in responsibility_table.HEADINGS]
    ends = [*starts[1:], None]
    body = lines[head + 2 : lines.index("Worth knowing")]
    return [[line[start:end].strip() for line in body] for start, end in zip(starts, ends, strict=True)]


def side_columns(text: str) -> list[tuple[list[str], list[Owner]]]:
    """Return the lines of both sides' columns, and the owners that they must show."""
    _, native, lightning = columns(text)
    ours = [each.lightning for each in CATALOGUE if each.lightning != each.native]
    return [(native, [each.native for each in CATALOGUE]), (lightning, ours)]


@pytest.mark.parametrize("width", [NARROWEST, 40, 60, 80, 100, 140, 160, 400])
def test_no_line_is_wider_than_the_terminal(width):
    assert max(map(len, rendered(width).splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80, 100, 140, 160])
def test_nothing_is_cut(width):
    text = rendered(width)
    assert "…" not in text
    for lines, owners in side_columns(text):
        joined, names = "".join("".join(lines).split()), "".join(line.removeprefix("- ") for line in lines)
        for owner in owners:
            assert "".join((owner.what or owner.who).split()) in joined
            for place in owner.places:
                assert re.search(rf"{re.escape(place.file)}:(\d+,)*{locate(place).line}(?!\d)", names)
                assert place.function in names


@pytest.mark.parametrize("width", [80, 100, 140, 160])
def test_no_name_of_a_file_or_function_is_broken(width):
    for lines, owners in side_columns(rendered(width)):
        shown = set(re.findall(r"[\w.]*\w", "\n".join(lines).replace(".\n", ".\n ")))
        shown |= {part for name in shown for part in name.split(".")}
        for place in (place for owner in owners for place in owner.places):
            assert place.file.rsplit("/", 1)[1] in shown
            assert set(place.function.split(".")) <= shown


def test_duties_and_changes_are_whole_at_80_columns():
    words = " ".join(" ".join(columns(rendered(80))[0]).split())
    assert words == " ".join(f"{each.name} {each.change}" for each in CATALOGUE)


def test_every_note_is_shown():
    words = " ".join(rendered(80).split())
    assert all(f"- {each.name}: {each.note}" in words for each in CATALOGUE if each.note)


def test_the_title_states_the_version_of_lightning():
    assert f"Lightning {metadata.version('lightning')}\n" in rendered(80)


def test_a_terminal_that_knows_ascii_only_shows_everything():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    responsibility_table.render(Console(width=80, file=stream))
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert max(map(len, text.splitlines())) <= 80
    assert all(place.file.rsplit("/", 1)[1] in text for place in PLACES)


def test_colours_carry_no_meaning_of_their_own():
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    responsibility_table.render(console)
    coloured = console.file.getvalue()
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == rendered(80)


@pytest.mark.usefixtures("no_lightning")
def test_without_lightning_the_table_still_works_and_says_so():
    text = rendered(80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("Who does what: native PyTorch and Lightning (lightning is not installed)")
    _, native, lightning = columns(text)
    assert "_FitLoop.run" not in text
    assert "train.py:" in "".join(native)
    told = [each for each in CATALOGUE if any(place.package == "lightning" for place in each.lightning.places)]
    assert lightning.count("lightning is not installed") == len(told)


@pytest.mark.usefixtures("no_lightning")
def test_without_lightning_json_has_null_lines_for_it_alone():
    places = [place for row in responsibility_table.to_json_data() for place in row["lightning"]["places"]]
    assert {place["line"] is None for place in places if place["file"].startswith("lightning/")} == {True}
    assert {place["line"] is None for place in places if not place["file"].startswith("lightning/")} == {False}


@pytest.fixture
def gone(monkeypatch):
    place = Place("lightning", "lightning/pytorch/loops/fit_loop.py", "_FitLoop.walk", "walk()")
    row = Responsibility("walking", Owner("nobody", ""), Owner("lightning", "walks", (place,)))
    monkeypatch.setattr(responsibility_table, "CATALOGUE", (row,))


@pytest.mark.usefixtures("gone")
def test_a_statement_that_another_version_lacks_is_shown_as_not_found():
    text = rendered(80)
    assert "fit_loop.py:? _FitLoop.walk" in text
    assert responsibility_table.NOT_FOUND in " ".join(text.split())


@pytest.mark.usefixtures("gone")
def test_markdown_and_json_say_that_a_statement_was_not_found():
    assert "`lightning/pytorch/loops/fit_loop.py:?` `_FitLoop.walk`" in responsibility_table.to_markdown()
    assert responsibility_table.to_markdown().endswith(responsibility_table.NOT_FOUND)
    assert responsibility_table.to_json_data()[0]["lightning"]["places"][0]["line"] is None


def test_nothing_is_said_to_be_missing_when_all_is_found():
    assert responsibility_table.NOT_FOUND not in " ".join(rendered(80).split())
    assert not responsibility_table.missing_places()


def test_markdown_has_a_row_of_five_cells_for_every_duty():
    rows = [line for line in responsibility_table.to_markdown().splitlines() if line.startswith("|")]
    assert len(rows) == len(CATALOGUE) + 2
    for row, each in zip(rows[2:], CATALOGUE, strict=True):
        cells = re.split(r"(?<!\\)\|", row)[1:-1]
        assert len(cells) == 5
        assert cells[0].replace("\\", "").strip() == each.name
        for owner, cell in ((each.native, cells[2]), (each.lightning, cells[3])):
            for place in owner.places:
                assert f"`{place.file}:{locate(place).line}` `{place.function}`" in cell


def test_markdown_shows_names_literally():
    prose = re.sub(r"`[^`]*`", "", responsibility_table.to_markdown().replace("<br>", " "))
    assert r"\_\_init\_\_" in prose
    assert not re.search(r"(?<!\\)[_*<\[`]", prose)


def test_json_has_every_duty_with_its_places_and_lines():
    rows = json.loads(json.dumps(responsibility_table.to_json_data()))
    assert [row["name"] for row in rows] == [each.name for each in CATALOGUE]
    for row, each in zip(rows, CATALOGUE, strict=True):
        assert (row["change"], row["note"]) == (each.change, each.note)
        for side, owner in (("native", each.native), ("lightning", each.lightning)):
            places = [{"file": p.file, "line": locate(p).line, "function": p.function} for p in owner.places]
            assert row[side] == {"who": owner.who, "what": owner.what, "places": places}


def test_the_summary_is_one_line_whose_numbers_add_up():
    line = summary(CATALOGUE)
    assert "\n" not in line
    duties, moved, stay, dropped, same, added = map(int, re.findall(r"\d+", line))
    assert duties == moved + stay + dropped + same
    assert duties + added == len(CATALOGUE)
    assert moved == sum(each.lightning.who == "lightning" and each.native.who != "nobody" for each in CATALOGUE)
