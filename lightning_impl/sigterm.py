"""What Lightning does between the steps of several ranks, and how to switch it off to see its price."""

import lightning
import lightning.pytorch as pl

from common.errors import RunError

BROADCAST = "_broadcast_sigterm_tensor"
"""Method of the epoch loop: tells every rank whether rank zero was sent SIGTERM; the host waits for the answer."""


def switch_off_sigterm_broadcast(trainer: pl.Trainer) -> None:
    """Take the broadcast out of every step of this trainer, and of no other. A rank then heeds its own SIGTERM alone.

    Raises:
        RunError: the installed Lightning has no such method, or its steps don't call it.
    """
    loop = trainer.fit_loop.epoch_loop
    called = type(loop).advance.__code__.co_names
    if not hasattr(loop, BROADCAST) or BROADCAST not in called:
        raise RunError(
            f"--sigterm-broadcast off: lightning {lightning.__version__} has no {BROADCAST} in its epoch loop; "
            "leave the option out, or install a version that has it: pip install lightning==2.6.6"
        )
    setattr(loop, BROADCAST, lambda: None)
