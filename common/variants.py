"""Choices in which the two sides differ and that one of them can switch, so that the price of each can be seen.

A run with a switch is a variant: it computes the same to the last bit, and is never mixed with its side's default runs.
"""

from dataclasses import dataclass

from common.errors import RunError


@dataclass(frozen=True)
class Variant:
    """One choice, and the option that switches it."""

    implementation: str
    """The side that has the option: ``native`` or ``lightning``."""
    option: str
    """Without its dashes."""
    values: tuple[str, str]
    """The side's own way, which is the default, and the other."""
    help: str
    """What the other value does."""
    elsewhere: str
    """Why the other side has no such option."""

    @property
    def name(self) -> str:
        """Name of the variant: what follows the dashes on the command line."""
        return f"{self.option} {self.values[1]}"

    @property
    def field(self) -> str:
        """Name of the choice in a ``RunConfig``."""
        return self.option.replace("-", "_")

    @property
    def words(self) -> tuple[str, str]:
        """The command line that asks for the variant."""
        return f"--{self.option}", self.values[1]


ZERO_GRAD = Variant(
    "native",
    "zero-grad",
    ("before-forward", "after-forward"),
    "zero the gradients after the forward, as Lightning does",
    "Lightning's Trainer zeroes the gradients itself, after the forward",
)
AUTOCAST_CACHE = Variant(
    "native",
    "autocast-cache",
    ("on", "off"),
    "cast a weight each time it is used, as Lightning does (ddp in bf16)",
    "Lightning enters autocast itself, without its cache",
)
SIGTERM_BROADCAST = Variant(
    "lightning",
    "sigterm-broadcast",
    ("on", "off"),
    "leave out Lightning's broadcast and host sync of every step (two ranks or more)",
    "the native half broadcasts nothing between its steps",
)
VARIANTS = (ZERO_GRAD, AUTOCAST_CACHE, SIGTERM_BROADCAST)
BY_NAME = {variant.name: variant for variant in VARIANTS}


def nothing_to_switch(variant: Variant, strategy: str, precision: str, world_size: int) -> str | None:
    """Return why a variant would change nothing in such a run; None if it has something to switch."""
    if variant is AUTOCAST_CACHE and strategy != "ddp":
        return f"{strategy} computes in bf16 without autocast"
    if variant is AUTOCAST_CACHE and precision == "fp32":
        return "fp32 needs no autocast"
    if variant is SIGTERM_BROADCAST and world_size == 1:
        return "a world of one broadcasts nothing"
    return None


def check_variants(names: list[str], strategy: str, precision: str, world_size: int) -> None:
    """Refuse a switch that has nothing to switch: its run would be called a variant and be none.

    Raises:
        RunError: it names the option and the reason.
    """
    for variant in VARIANTS:
        if variant.name in names and (reason := nothing_to_switch(variant, strategy, precision, world_size)):
            raise RunError(f"{' '.join(variant.words)}, but {reason}; leave the option out")
