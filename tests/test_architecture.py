"""The arrows of the house: who may import whom."""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from common.errors import DEPENDENCIES
from tests.runs import ROOT

PACKAGES = ("common", "native", "lightning_impl", "comparison")
HEAVY = {"torch", "lightning", "pytorch_lightning", "numpy"}
LIGHTNING = {"lightning", "pytorch_lightning", "lightning_fabric"}
FORBIDDEN = {
    "common": {"native", "lightning_impl", "comparison", "compare", *LIGHTNING},
    "native": {"lightning_impl", "comparison", "compare", *LIGHTNING},
    "lightning_impl": {"native", "comparison", "compare"},
    "comparison": {"native", "lightning_impl", "compare", *HEAVY},
    "compare": {"native", "lightning_impl", *HEAVY},
}


def files_of(package: str) -> list[Path]:
    return [ROOT / "compare.py"] if package == "compare" else sorted((ROOT / package).glob("**/*.py"))


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the modules that a file imports anywhere, dotted."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import, which this test cannot follow"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def top(modules) -> set[str]:
    return {module.split(".")[0] for module in modules}


def project_file(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def reachable(start: list[Path]) -> set[str]:
    """Return all modules that files import, directly or through other files of this project."""
    modules, todo = set(), list(start)
    while todo:
        new = imports(todo.pop()) - modules
        modules |= new
        todo += [file for module in new if (file := project_file(module))]
    return modules


@pytest.mark.parametrize("package", FORBIDDEN)
def test_arrows_point_one_way(package):
    found = {str(path.relative_to(ROOT)): top(imports(path)) & FORBIDDEN[package] for path in files_of(package)}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_rendering_reaches_neither_torch_nor_lightning_through_common():
    assert top(reachable([*files_of("compare"), *files_of("comparison")])) & HEAVY == set()


def test_native_reaches_lightning_through_nothing():
    assert top(reachable(files_of("native"))) & LIGHTNING == set()


def test_the_paths_of_this_test_lead_somewhere():
    assert {"torch", "common"} <= top(reachable(files_of("native")))


def test_every_foreign_module_is_a_declared_dependency_whose_absence_is_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    used = top(name for package in (*PACKAGES, "compare") for path in files_of(package) for name in imports(path))
    assert used - set(sys.stdlib_module_names) - {*PACKAGES, "compare"} <= declared
    assert declared == set(DEPENDENCIES)


@pytest.mark.parametrize("package", ["common", "native", "lightning_impl"])
def test_files_stay_short_enough_to_read(package):
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in files_of(package)}
    assert {name: length for name, length in lengths.items() if length >= 400} == {}


def test_the_two_entry_points_stay_line_parallel():
    native = (ROOT / "native" / "__main__.py").read_text().splitlines()
    lightning = (ROOT / "lightning_impl" / "__main__.py").read_text().splitlines()
    assert len([line for line in lightning if line not in native]) <= 10
