"""Where the source of this project and of lightning lies. Imports neither torch nor lightning."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parent.parent


@cache
def lightning_root() -> Path | None:
    """Return the folder that holds the package ``lightning``, without importing it; None if it is not installed."""
    try:
        spec = find_spec("lightning")
    except ValueError:  # sys.modules holds something of that name without a spec
        return None
    # Any folder called lightning is a namespace package to Python; only a real package has an origin.
    return Path(spec.origin).resolve().parent.parent if spec and spec.origin else None
