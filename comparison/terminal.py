"""Where tables are printed: a terminal, a pipe or a file, of any width and encoding."""

from rich.console import Console
from rich.text import Text

from common.text import plain

NARROWEST = 20
"""Columns that tables are laid out for at least: a narrower terminal folds the lines by itself."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave the exception to whoever ends the program: rich would exit with 1, which means something else here."""
        raise


def make_console() -> Console:
    """Return a console for stdout that is at least :data:`NARROWEST` columns wide."""
    console = _Console(highlight=False)
    if console.width < NARROWEST:
        console.width = NARROWEST
    return console


def literal(console: Console, text: str, style: str = "") -> Text:
    """Return text from a result file as it is, but for what a terminal would obey or ``console`` cannot encode."""
    known = plain(text).encode(console.encoding, "backslashreplace").decode(console.encoding)
    return Text(known, style=style, overflow="fold")
