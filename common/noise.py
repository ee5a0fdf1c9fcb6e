"""What lightning prints that tells a reader of the comparison nothing, turned off at its source.

Warnings and errors stay; only announcements ("GPU available: ...", advertising tips, the list of what ``barebones``
turns off), advice to use srun and one deprecation inside lightning itself are silenced. Nothing here hides stderr.
"""

import logging
import warnings


def quiet_lightning() -> None:
    """Keep lightning's loggers to warnings. Call after lightning was imported, which sets their levels."""
    for name in (
        "lightning.pytorch",
        "lightning.fabric",
        "lightning.pytorch.utilities.rank_zero",
        "lightning.fabric.utilities.rank_zero",
    ):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings(
        "ignore", message=r".*LeafSpec.*is deprecated", module=r"lightning\.pytorch\.utilities\._pytree"
    )
    # Because DDPStrategy constructs DDP in a side stream. What that takes is a finding: Choices.allocator_streams.
    warnings.filterwarnings("ignore", message=r"The AccumulateGrad node's stream does not match")
    # common/launch.py knows better: it has refused every process that should have been started by srun.
    warnings.filterwarnings("ignore", message=r"The `srun` command is available on your system but is not used")
