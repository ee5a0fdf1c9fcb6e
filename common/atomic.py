"""A file that is there as a whole or not at all, however the process that writes it ends."""

import os
from pathlib import Path

from common.errors import RunError


def write_whole(path: Path, text: str, *, overwrite: bool) -> None:
    """Write ``text`` to a temporary file beside ``path`` and give it that name; the mode is what the umask leaves.

    Raises:
        RunError: the file appeared in the meantime and may not be replaced, or cannot be written.
    """
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        try:
            with open(temporary, "x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if overwrite:
                os.replace(temporary, target)
            else:
                _rename_without_replacing(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise RunError(
            f"{path} was written by somebody else during the run; it is left as it is", exit_code=1
        ) from None
    except OSError as error:
        raise RunError(f"{path} could not be written: {error.strerror}", exit_code=1) from None


def _rename_without_replacing(source: Path, target: Path) -> None:
    try:
        os.link(source, target)  # unlike a rename, a link never replaces what another run wrote
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: better a small race than a lost result
        if target.exists():
            raise FileExistsError(target) from None
        os.replace(source, target)
