"""What a responsibility is: a duty of distributed training, who does it on either side, and where."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from comparison.source import Place

Who = Literal["native", "lightning", "lightning_impl", "common", "launcher", "nobody"]
Change = Literal["moved", "stays", "added", "dropped", "same"]


@dataclass(frozen=True)
class Owner:
    """Who does a duty on one of the two sides."""

    who: Who
    """``native`` and ``lightning_impl``: written out there; ``common``: shared by both; ``lightning``: the library does
    it; ``launcher``: torchrun or srun, outside of the process; ``nobody``: not done."""
    what: str
    """What is done there, in at most 60 characters; may be empty for ``nobody``."""
    places: tuple[Place, ...] = ()
    """The statements that do it, in the order in which they run; where the DDP and the FSDP2 strategy differ, both."""


@dataclass(frozen=True)
class Responsibility:
    """A duty that somebody must do, or that Lightning brings along."""

    name: str
    """The field's term for it."""
    native: Owner
    lightning: Owner
    note: str = ""
    """One sentence that teaches something, or nothing."""
    calls: tuple[str, ...] = ()
    """The calls by which a run shows who does it, by their names in ``common/trace.py``; none if nothing would show."""

    @property
    def change(self) -> Change:
        """What Lightning makes of it.

        ``moved``: written by hand in native, done by the library in Lightning; ``stays``: written by hand on both
        sides; ``added``: done by Lightning only; ``dropped``: done by native only; ``same``: the launcher's anyway.
        """
        if self.native.who == self.lightning.who == "launcher":
            return "same"
        if self.native.who == "nobody":
            return "added"
        if self.lightning.who == "nobody":
            return "dropped"
        return "moved" if self.lightning.who == "lightning" else "stays"


def summary(catalogue: Iterable[Responsibility]) -> str:
    """Return the whole catalogue in two sentences on one line."""
    changes = Counter(responsibility.change for responsibility in catalogue)
    return (
        f"{changes.total() - changes['added']} duties: {changes['moved']} moved to Lightning; {changes['stays']} stay "
        "yours, because they are about this model, its data or its measurement, or because Lightning leaves them open; "
        f"{changes['dropped']} dropped; {changes['same']} left to the launcher. "
        f"Lightning added {changes['added']} things of its own."
    )
