"""The training loop, handed to the Trainer."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

from common.errors import RunError
from common.launch import Launch
from common.noise import quiet_lightning
from common.options import RunConfig
from common.precision import Precision
from common.recorder import RunRecorder
from lightning_impl.module import TransformerBenchmark
from lightning_impl.sigterm import switch_off_sigterm_broadcast
from lightning_impl.strategy import check_launcher, make_strategy, slurm_plugins


def train(config: RunConfig, launch: Launch, device: torch.device, precision: Precision, recorder: RunRecorder) -> None:
    """Train for warmup + steps optimizer steps; what it builds is gone when it returns."""
    quiet_lightning()
    # ddp computes in bf16 by Lightning's autocast; fsdp2 has its MixedPrecisionPolicy.
    autocast = config.strategy == "ddp" and precision.resolved == "bf16"
    trainer = pl.Trainer(
        accelerator=device.type,
        devices=launch.local_world_size,
        num_nodes=launch.num_nodes,
        strategy=make_strategy(config, launch),
        plugins=slurm_plugins(launch),
        precision="bf16-mixed" if autocast else "32-true",
        max_epochs=1,
        max_steps=config.total_steps,
        use_distributed_sampler=False,
        barebones=True,
    )
    check_launcher(trainer, launch)
    if config.sigterm_broadcast == "off":
        switch_off_sigterm_broadcast(trainer)
    try:
        with recorder.recording_outcome():
            trainer.fit(TransformerBenchmark(config, launch, precision, recorder))
    except SIGTERMException:  # a SystemExit without a code: an interrupted run would look like a success
        raise RunError("ended by SIGTERM before the last step; there is no result", exit_code=1) from None
