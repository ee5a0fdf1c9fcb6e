"""Definitions and lines of code of a source text, which is parsed and never imported."""

import ast
import io
import tokenize
from functools import cache

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def definitions(text: str) -> dict[str, list[Definition]]:
    """Return all functions and classes of a source text by qualified name; properties have several."""
    found: dict[str, list[Definition]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, Definition):
                name = f"{prefix}.{child.name}".lstrip(".")
                found.setdefault(name, []).append(child)
            visit(child, name)

    visit(ast.parse(text), "")
    return found


NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> set[int]:
    """Return the numbers of the lines that are neither blank, nor comment, nor docstring, nor import."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_bare_string(node):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return lines


def _is_bare_string(node: ast.AST) -> bool:
    """Say whether a statement is nothing but a string: a docstring, also one below an attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
