"""The training loop, handed to the Trainer."""

import lightning.pytorch as pl
import torch

from common.launch import Launch
from common.noise import quiet_lightning
from common.options import RunConfig
from common.precision import Precision
from common.recorder import RunRecorder
from lightning_impl.module import TransformerBenchmark
from lightning_impl.sigterm import switch_off_sigterm_broadcast
from lightning_impl.strategy import launcher_plugins, make_strategy


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
        plugins=launcher_plugins(launch),
        precision="bf16-mixed" if autocast else "32-true",
        max_epochs=1,
        max_steps=config.total_steps,
        use_distributed_sampler=False,
        deterministic=config.deterministic,
        barebones=True,
    )
    if config.sigterm_broadcast == "off":
        switch_off_sigterm_broadcast(trainer)
    trainer.fit(TransformerBenchmark(config, launch, precision, recorder))
