"""Files that anybody may have written: read within limits; and why one is no result, with its first wrong key."""

import codecs
import json
import re
import stat
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from common.text import shortened

MAX_FILE_MIB = 16
"""Of a file that is read: room for some 300,000 steps."""
MAX_KEYS = 1000
"""Keys of one object in a file. No section comes near it, and pydantic takes a minute over millions that it refuses."""
KEY_LENGTH, VALUE_LENGTH = 200, 80
"""Characters of a key and of a value that a message shows."""


class ResultFileError(Exception):
    """A file that is no result of this schema; the message names the file and the first wrong key."""


def read_content(path: Path) -> bytes:
    """Return what is in a file, which must be a regular one of at most :data:`MAX_FILE_MIB`.

    Raises:
        OSError: it cannot be read.
        ResultFileError: it is too large, or a folder, pipe or device, which may have no end.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ResultFileError(f"{path}: no regular file, but a folder, pipe, socket or device")
    with path.open("rb") as file:
        content = file.read(MAX_FILE_MIB * 2**20 + 1)
    if len(content) > MAX_FILE_MIB * 2**20:
        size = f"{path.stat().st_size / 2**20:,.0f}"
        raise ResultFileError(f"{path}: {size} MiB, more than the {MAX_FILE_MIB} MiB that are read of a result")
    return content


def obstacle(content: bytes) -> str | None:
    """Return why a file's content cannot be read as JSON of the kind that we write; None where a parser should judge.

    JSON leaves open which one of two equal keys counts. Here none does: the file is refused.
    """
    if not content.strip():
        return "the file is empty"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content[:4]:
        return "UTF-16, UTF-32 or binary; a result is JSON in UTF-8"
    if content.startswith(codecs.BOM_UTF8):
        return "it starts with a byte order mark; a result is JSON in UTF-8 without one"
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return f"no UTF-8: byte 0x{content[error.start]:02x} at position {error.start}; a result is JSON in UTF-8"
    try:
        json.loads(text, object_pairs_hook=_check_keys)
    except _WrongKeys:
        return _wrong_keys(json.loads(text, object_pairs_hook=list))
    except (ValueError, RecursionError):
        return None  # pydantic's parser says it better
    return None


class _WrongKeys(Exception):
    """Some object has a key twice, or too many."""


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    """Keep nothing of an object whose keys are good, which is nearly all of them, and quick."""
    if len(pairs) > MAX_KEYS or len({name for name, _ in pairs}) < len(pairs):
        raise _WrongKeys


def _wrong_keys(pairs: Any, prefix: str = "") -> str | None:
    """Return what is wrong with the keys of an object, given as pairs, and of those within it."""
    if not _is_object(pairs):
        return None
    if len(pairs) > MAX_KEYS:
        return f"{_at(prefix)}{len(pairs):,} keys in one object; at most {MAX_KEYS:,} are read"
    seen = set()
    for name, value in pairs:
        if name in seen:
            return f"{shortened(prefix + name, KEY_LENGTH)}: the key is there twice"
        seen.add(name)
        if wrong := _wrong_keys(value, f"{prefix}{name}."):
            return wrong
    return None


def _is_object(value: Any) -> bool:
    """Say whether parsed JSON was an object that is not empty: pairs are tuples, the items of an array never are."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], tuple)


def _at(prefix: str) -> str:
    return f"{shortened(prefix.removesuffix('.'), KEY_LENGTH)}: " if prefix else ""


def first_error(error: ValidationError, schema_version: str) -> str:
    """Return the first thing that pydantic found wrong: key, what would be right, and the value that is there."""
    first = error.errors(include_url=False, include_context=False)[0]
    if first["loc"] == ("schema_version",) and isinstance(first["input"], str):
        return _wrong_version(first["input"], schema_version)
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid" and "EOF while parsing" in text:
        text += "; the file was cut off"
    if first["type"] != "extra_forbidden" and isinstance(first["input"], str | int | float) and first["loc"]:
        text += f", not {shortened(json.dumps(first['input']), VALUE_LENGTH)}"
    return f"{_at('.'.join(str(part) for part in first['loc']))}{text}"


def _wrong_version(found: str, known: str) -> str:
    if not re.fullmatch(r"\d{1,9}\.\d{1,9}", found):
        return f"schema_version: should be {known}, not {shortened(json.dumps(found), VALUE_LENGTH)}"
    age = "newer" if _numbers(found) > _numbers(known) else "older"
    way_out = "show it with the version of this project that wrote it, or repeat the run with this one"
    return f"schema_version: {found} is {age} than {known}, the only one that is read here; {way_out}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
