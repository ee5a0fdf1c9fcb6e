"""Strings that nobody has to trust, made fit for a terminal: what would act or hide is spelled out."""

import unicodedata

BLANK = "\u115f\u1160\u2800\u3164\uffa0"
"""Hangul fillers and the empty Braille cell: letters and symbols by their category, and nothing to see."""


def plain(text: str) -> str:
    """Return ``text`` with everything spelled out that would steer a terminal or take no column of its own.

    Those are controls (ESC and the C1 ones included), line ends, changes of direction, zero-width characters, combining
    marks, spaces other than the plain one, and lone surrogates, which stand for bytes of file names that are no UTF-8.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char.encode("unicode_escape").decode() if _is_hidden(char) else char for char in text)


def _is_hidden(char: str) -> bool:
    return not char.isprintable() or unicodedata.category(char) in ("Mn", "Me") or char in BLANK


def shortened(text: str, limit: int) -> str:
    """Return the start of ``text`` and its length if it has more than ``limit`` characters."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"
