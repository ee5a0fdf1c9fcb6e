"""What the documents name exists: files, functions and fields; and every number of a result is explained."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from common.result import Choices, Correctness, Memory, Outcome, Parameters, Timing
from tests.runs import ROOT

DOCUMENTS = (
    "README.md",
    "docs/clusters.md",
    "docs/measuring.md",
    "docs/exercises.md",
    "docs/reliability.md",
    "docs/h200-multi/README.md",
)
FOLDERS = ("benchmarks", "common", "comparison", "docs", "launchers", "lightning_impl", "native", "tests")
SUFFIXES = (".py", ".sh", ".md", ".json")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PLACE = re.compile(r"\[`([\w/]+\.py)`\]\([^)]*\)\s\(((?:`[\w.]+`,?\s?)+)\)")
"""A link to a source file, followed by what is to be found in it: [`common/timing.py`](...) (`LapTimer`, `Mark`)."""
PLACEHOLDER = re.compile(
    r"TODO|TBD|FIXME|XXX|\?\?\?|@@|\{\{|\}\}|lorem ipsum|^COST$|PLACEHOLDER|<[a-z ]+ here>", re.M | re.I
)


def read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def prose(text: str) -> str:
    return FENCE.sub("", text)


def commands(text: str) -> list[str]:
    """Return the words of all shell examples."""
    return [word for language, code in FENCE.findall(text) if language == "bash" for word in code.split()]


@cache
def sources() -> dict[Path, str]:
    """Return the project's own files below :data:`FOLDERS` and in the root, without the documents."""
    found = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sh", ".json")
    ]
    found += [*ROOT.glob("*.py"), *ROOT.glob("*.toml")]
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in found}


def missing_files(text: str, folder: Path = ROOT) -> list[str]:
    """Return the files, folders and links that a document names and that do not exist.

    A path is looked up from the root. A name without a folder (`timing.py`, said of a folder) may lie in any of them.
    """
    spans = SPAN.findall(prose(text))
    named = [span for span in spans if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", span) and span.endswith((*SUFFIXES, "/"))]
    named += [word for word in commands(text) if re.fullmatch(r"[\w-]+(/[\w-]+)*\.(py|sh)", word)]
    names = {path.name for path in sources()}
    made = (ROOT / ".gitignore").read_text(encoding="utf-8").split()  # by whoever follows the document
    missing = [name for name in named if not (ROOT / name).exists() and name not in (*names, *made)]
    links = [link.partition("#")[0] for link in LINK.findall(prose(text)) if "://" not in link]
    return missing + [link for link in links if link and not (folder / link).exists()]


def unknown_words(text: str) -> list[str]:
    """Return the names in backticks, told by an underscore or a dot between words, that no source file contains."""
    everything = "\n".join(sources().values())
    known = set(re.findall(r"\w+", everything))
    found = []
    for span in SPAN.findall(prose(text)):
        if re.fullmatch(r"\w+(\.\w+)*", span) and not span.endswith(SUFFIXES) and ("_" in span or "." in span):
            found += [word for word in span.split(".") if word not in known]
    return found


def misplaced(text: str) -> list[str]:
    """Return what a document places in a source file that does not define it."""
    found = []
    for path, names in PLACE.findall(text):
        defined = definitions(path) if (ROOT / path).exists() else set()
        found += [f"{path}: {name}" for name in SPAN.findall(names) if name not in defined]
    return found


def definitions(path: str) -> set[str]:
    """Return the classes, functions and assigned names of a file; methods as ``Class.method``."""
    found = set()
    for node in ast.parse(read(path)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_a_document_names_exist(document):
    assert missing_files(read(document), (ROOT / document).parent) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_names_in_backticks_occur_in_the_source(document):
    assert unknown_words(read(document)) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_functions_are_where_a_document_places_them(document):
    assert misplaced(read(document)) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_placeholder_is_left(document):
    assert PLACEHOLDER.findall(read(document)) == []


@pytest.mark.parametrize("section", [Choices, Correctness, Memory, Outcome, Parameters, Timing])
def test_every_number_of_a_result_is_explained(section):
    explained = set(SPAN.findall(prose(read("docs/measuring.md"))))
    assert {name.removesuffix("_min") for name in section.model_fields if name not in explained} <= explained


def test_the_parser_finds_what_it_is_to_check():
    text = " ".join(read("docs/measuring.md").split())
    places = [PLACE.match(rest) for rest in text.split("Code: ")[1:] if not rest.startswith("as before")]
    assert len(places) > 20
    assert all(places)


class TestOfWrongText:
    def test_a_missing_file_is_found(self):
        assert missing_files("`common/none.py`, `common/timing.py`, `nothing/` and [a](docs/none.md)") == [
            *("common/none.py", "nothing/", "docs/none.md")
        ]

    def test_a_missing_script_in_an_example_is_found(self):
        assert missing_files("```bash\nbash launchers/none.sh --output x.json\n```\n") == ["launchers/none.sh"]

    def test_an_unknown_name_is_found(self):
        assert unknown_words("`peak_allocated_gib`, `peak_" + "imagined_gib` and `LapTimer." + "finish_" + "lap`") == [
            *("peak_" + "imagined_gib", "finish_" + "lap")
        ]

    def test_a_function_in_another_file_is_found(self):
        text = "[`common/timing.py`](../common/timing.py) (`LapTimer.lap`, `storage_gib`)"
        assert misplaced(text) == ["common/timing.py: storage_gib"]

    @pytest.mark.parametrize("text", ["TODO: fill in", "the figure is {{figure}}", "<figure here>", "a\nCOST\nb"])
    def test_a_placeholder_is_found(self, text):
        assert PLACEHOLDER.search(text)
