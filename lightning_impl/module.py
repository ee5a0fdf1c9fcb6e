"""The model as a LightningModule: what stays to be written when the Trainer does the rest."""

from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from common.data import make_batch
from common.initialization import fill_parameters
from common.launch import Launch
from common.model import SyntheticTransformer
from common.options import RunConfig
from common.precision import Precision
from common.recorder import RunRecorder


class TransformerBenchmark(pl.LightningModule):
    """The synthetic transformer with its shards, its optimizer, its step and its measurements."""

    def __init__(self, config: RunConfig, launch: Launch, precision: Precision, recorder: RunRecorder) -> None:
        super().__init__()
        self.config = config
        self.launch = launch
        self.precision = precision
        self.recorder = recorder
        self.model: SyntheticTransformer | None = None

    def setup(self, stage: str) -> None:
        """The process group exists."""
        self.recorder.begin()

    def configure_model(self) -> None:
        """Build the model on this rank's device with its starting weights; Lightning may call this more than once."""
        if self.model is not None:
            return
        with torch.device("meta"):
            model = SyntheticTransformer(self.config.model)
        if self.config.strategy == "fsdp2":
            self.shard(model)
        model.to_empty(device=self.trainer.strategy.root_device)
        fill_parameters(model, self.config.seed)
        self.model = model

    def shard(self, model: SyntheticTransformer) -> None:
        """Apply FSDP2: where to cut remains a decision about the model, so it remains written here."""
        mesh = self.device_mesh["data_parallel"]
        policy = MixedPrecisionPolicy()
        if self.precision.resolved == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if self.config.fsdp_wrap == "block":
            for block in model.blocks:
                fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        # The backward needs the root first, right after the forward: freeing it in between would gather it twice.
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Lightning asks after ``configure_model``, so the optimizer sees the shards."""
        return torch.optim.AdamW(self.model.parameters(), lr=self.config.learning_rate)

    def train_dataloader(self) -> range:
        """One lightweight token a step: the batch itself is on the device already."""
        return range(self.config.total_steps)

    def on_train_start(self) -> None:
        """Draw this rank's batch and record the start."""
        batch_size = self.config.local_batch_size(self.trainer.world_size)
        self.batch = make_batch(self.config.model, self.config.seed, self.global_rank, batch_size).to(self.device)
        optimizer = self.optimizers(use_pl_optimizer=False)
        self.recorder.before_training(self.model, self.trainer.strategy.model, optimizer, self.batch)

    def training_step(self, token: int, step: int) -> Tensor:
        """Forward alone; Lightning zeroes, goes backward and updates once this returns."""
        logits = self.model(self.batch.tokens)
        return F.cross_entropy(logits.float(), self.batch.labels)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are complete."""
        self.recorder.after_backward()

    def on_train_batch_end(self, outputs: dict[str, Any], batch: int, step: int) -> None:
        """A step has ended."""
        self.recorder.after_step(outputs["loss"])

    def on_train_end(self) -> None:
        """All steps are done."""
        self.recorder.finish()
