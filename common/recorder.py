"""Drives the instruments of one run. Both sides call the same methods at the same points.

Order of calls: :meth:`RunRecorder.watch_calls` and :meth:`RunRecorder.meet` before there is a process group;
:meth:`RunRecorder.begin` once there is one; :meth:`RunRecorder.before_training`; for each step
:meth:`RunRecorder.after_backward` and :meth:`RunRecorder.after_step`; at the end :meth:`RunRecorder.finish`; all of it
inside :meth:`RunRecorder.recording_outcome`. Once the process group is gone comes :meth:`RunRecorder.report`.
Inside the timed window nothing here synchronises, communicates or reads a value back from the device.
"""

import signal
import socket
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from common import correctness
from common.assemble import RankReport, describe_optimizer, failed_result, judge, measured_result
from common.choices import ChoicesObserver
from common.data import Batch, sample_digests
from common.environment import machine_id
from common.errors import RunError
from common.failure import EXIT_CODES, FAILED, PATIENCE, FailureWatch, end_process, sizes_in_message
from common.initialization import local_tensor, weights_sha256
from common.interruption import watch_signals
from common.launch import Launch
from common.meeting import facts_of_rank, meet
from common.memory import MemoryMeter, end_snapshot, start_snapshot
from common.model import SyntheticTransformer
from common.options import RunConfig
from common.precision import Precision
from common.report import describe_failure, describe_outcome, describe_signal, follows_from_another, report
from common.result import Outcome, Result
from common.timing import LapTimer, synchronize
from common.trace import Trace
from common.variants import check_variants

COUNTED_STEP = 3
"""The warm-up step whose operations are counted, or the last: DDP settles its buckets during the first two."""


class RunRecorder:
    """The instruments of one run on one rank."""

    def __init__(self, config: RunConfig, launch: Launch, device: torch.device, precision: Precision) -> None:
        self.config = config
        self.launch = launch
        self.device = device
        self.precision = precision
        self.timer = LapTimer(device)
        self.memory = MemoryMeter(device)
        self.watch = FailureWatch(launch, self._report_failure)
        self.trace = Trace()
        self.outcome = Outcome(status="completed")
        self.phase = "setup"
        self.steps_done = 0
        self.losses: list[Tensor] = []
        """This rank's loss of every step, warm-up included: scalars on the device."""
        self.hosts: list[str] = []
        self.machines: list[str] = []
        # Plain attributes, since every step asks for them: looking things up takes longer there than the clock.
        self._warmup_steps, self._total_steps = config.warmup_steps, config.total_steps
        self._counted_step = min(COUNTED_STEP, config.warmup_steps)
        self._result: Result | None = None
        # Ranks often run out of memory together: this rank's own failure and the watch's verdict are one result.
        self._reporting = threading.Lock()
        self._reported = False
        self._is_interrupted = False

    def meet(self) -> None:
        """Hear SIGTERM and SIGINT from now on, and wait until every rank is there. A collective call.

        Raises:
            RunError: a rank did not come, or the ranks were told different things.
        """
        watch_signals(self._end_by_signal)
        # Kept: under srun, rank zero serves the store, and the process group will use the same one.
        self._store = meet(self.config, self.launch, facts_of_rank(self.config, self.device, self.precision))
        if self._store is not None:
            self.watch.start()

    def watch_calls(self) -> None:
        """Begin to watch who calls what, on the rank that writes the result. Nobody watches when the window opens."""
        if self.launch.rank == 0:
            self.trace.begin()

    @contextmanager
    def recording_outcome(self) -> Iterator[None]:
        """Make running out of memory, on any rank and in any phase, a result that rank zero writes; then end.

        Whatever else goes wrong on one rank ends all of them, after one line from the first of them. What a person can
        act on (:class:`RunError`) all ranks find out by themselves, so it goes on as the exception that it is.
        """
        try:
            yield
        except torch.OutOfMemoryError as error:
            self._end_out_of_memory(str(error))
        except RunError:
            self.watch.stop()
            raise
        except Exception as error:
            self._end_failed(error)
        except SystemExit:  # Lightning's answer to SIGTERM, which would be exit code 0: our own is on its way
            time.sleep(PATIENCE.total_seconds())
            end_process(FAILED)

    def begin(self) -> None:
        """Agree with the other ranks, and begin to listen for their failures. A collective call.

        Raises:
            RunError: the ranks resolved different precisions, or memory is to be recorded where that is impossible,
                or a variant was asked for that has nothing to switch.
        """
        if self.config.memory_snapshot is not None and self.device.type != "cuda":
            raise RunError(
                f"--memory-snapshot {self.config.memory_snapshot}: PyTorch records CUDA memory only, and this run is "
                "on the CPU; leave the option out, or use --device cuda"
            )
        met: list[tuple[str, str, str]] = [("", "", "")] * self.launch.world_size
        dist.all_gather_object(met, (socket.gethostname(), machine_id(), self.precision.resolved))
        self.hosts, self.machines, resolved = map(list, zip(*met, strict=True))
        if len(set(resolved)) > 1:
            by_rank = ", ".join(f"rank {rank} {name}" for rank, name in enumerate(resolved))
            raise RunError(
                f"the ranks resolved different precisions ({by_rank}); add --precision fp32 or --precision bf16"
            )
        check_variants(self.config.variants, self.config.strategy, self.precision.resolved, self.launch.world_size)
        self.watch.start()
        # A large block that was freed before would be cut up for the model, and could then never be given back.
        self.memory.release_setup()

    def before_training(
        self, model: SyntheticTransformer, wrapped: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch
    ) -> None:
        """Record the start. A collective call.

        Args:
            model: without its DDP wrapper, sharded or not.
            wrapped: what the training step calls: the DDP wrapper, or the model itself.
            optimizer: PyTorch's own, without any wrapper.
            batch: on this rank's device.
        """
        self.model = model
        self.optimizer = optimizer
        self.optimizer_settings = describe_optimizer(optimizer)
        self.sample_digests = sample_digests(batch)
        self.initial_weights_sha256 = weights_sha256(model)
        self.initial_checksums = correctness.local_checksums(model)
        self.choices = ChoicesObserver(model, wrapped, self.device, self.config.warmup_steps)
        self.memory.release_setup()
        self.phase = "warmup"
        self.trace.watch("step")
        if self._counted_step == 1:
            self.trace.count_step(1)

    def after_backward(self) -> None:
        """Take the gradient norm of the first step, which is never timed."""
        if self.steps_done == 0:
            self.squared_gradient_norm = correctness.local_squared_gradient_norm(self.model)

    def after_step(self, loss: Tensor) -> None:
        """End a step whose loss, a scalar on the device, is ``loss``; open the window after the last warm-up step."""
        self.losses.append(loss.detach())
        self.steps_done += 1
        if self.steps_done > self._warmup_steps:
            self.timer.lap()
            if self.steps_done == self._total_steps:
                self.timer.stop()
                self.phase = "final"
        else:
            self._after_warmup_step()

    def _after_warmup_step(self) -> None:
        if self.steps_done == 1:
            self.trace.stop()
        if self.steps_done == self._counted_step:
            self.trace.stop_counting()
        elif self.steps_done == self._counted_step - 1:
            self.trace.count_step(self._counted_step)
        if self.steps_done == self._warmup_steps:
            self._open_window()
        elif self._snapshots and self.steps_done == self._warmup_steps - 2:
            start_snapshot()

    def _open_window(self) -> None:
        if self._snapshots:
            end_snapshot(self.config.memory_snapshot)
        self.phase = "window"
        self.trace.watch("window")
        dist.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)
        self.trace.stop()
        synchronize(self.device)
        self.memory.start_window()
        self.timer.start()

    @property
    def _snapshots(self) -> bool:
        return self.config.memory_snapshot is not None and self.launch.rank == 0

    def finish(self) -> Result | None:
        """Bring the ranks' measurements together and judge them. A collective call.

        Returns:
            The result on global rank zero, None elsewhere. :meth:`report` adds what was seen after this.

        Raises:
            RunError: the number of steps was not the one asked for.
        """
        # Memory first: what follows allocates some of its own.
        memory = self.memory.end_window(self.model, self.optimizer)
        self.trace.watch("teardown")
        if self.steps_done != self.config.total_steps:
            raise RunError(
                f"{self.steps_done} optimizer steps were made instead of {self.config.total_steps}", exit_code=1
            )
        final_checksums = correctness.local_checksums(self.model)
        sizes = [local_tensor(parameter).numel() for parameter in self.model.parameters()]
        own = RankReport(
            sample_digests=self.sample_digests,
            losses=torch.stack(self.losses).double().tolist(),
            squared_gradient_norm=self.squared_gradient_norm,
            checksums=final_checksums,
            elements=sum(sizes),
            every_shard_changed=correctness.every_shard_changed(self.initial_checksums, final_checksums, sizes),
            elapsed_seconds=self.timer.elapsed_seconds,
            median_lap_milliseconds=statistics.median(self.timer.laps_milliseconds()),
            memory=memory,
        )
        reports: list[RankReport] = [None] * self.launch.world_size  # type: ignore[list-item]
        dist.all_gather_object(reports, own)
        self.outcome = judge(self.config, reports)
        final_weights = weights_sha256(self.model)
        self.watch.stop()
        self._ddp_buckets = self.choices.ddp_buckets()
        self._result = measured_result(self, reports, final_weights) if self.launch.rank == 0 else None
        # The process group is torn down once model and optimizer are gone: nothing here may keep them.
        del self.model, self.optimizer, self.choices
        return self._result

    def report(self) -> int:
        """Write and print the result on global rank zero, after the teardown, which is part of what is watched.

        Returns:
            The runner's exit code: 0 only for a completed run.

        Raises:
            RunError: the file could not be written.
        """
        self.trace.stop()
        if self._result is not None:
            seen = self.trace.responsibilities(self._ddp_buckets)
            with self._reporting:
                report(self.config, self._result.model_copy(update={"responsibilities": seen}))
                self._reported = True
        if self._is_interrupted:  # too late to change the result, and no success all the same
            time.sleep(PATIENCE.total_seconds())
        return EXIT_CODES[self.outcome.status]

    def _end_out_of_memory(self, message: str) -> None:
        requested, free = sizes_in_message(message)
        outcome = Outcome(
            status="out_of_memory",
            phase=self.phase,
            step=None if self.phase in ("setup", "final") else self.steps_done + 1,
            rank=self.launch.rank,
            requested_gib=requested,
            free_gib=free,
            message=message.splitlines()[0],
        )
        if self.launch.rank == 0:
            self._report_failure(outcome)
        self.watch.announce(outcome)
        end_process(EXIT_CODES[outcome.status])

    def _end_failed(self, error: Exception) -> None:
        def tell() -> None:
            if not follows_from_another(error):  # what waiting for a lost rank looks like helps nobody
                traceback.print_exception(error)
            self._say(describe_failure(error, self.config))

        self.watch.announce_failure(tell)
        end_process(FAILED)

    def _end_by_signal(self, number: signal.Signals) -> None:
        self._is_interrupted = True
        self._reporting.acquire(timeout=PATIENCE.total_seconds())  # a file that is being written will be whole
        self.watch.announce_failure(lambda: self._say(describe_signal(number)))
        end_process(128 + number)

    def _say(self, what: str) -> None:
        """Print one line with everything that a person needs to find the place of a failure."""
        config, launch = self.config, self.launch
        step = f"in step {self.steps_done + 1} ({self.phase})"
        where = {"setup": "during setup", "final": "after the last step"}.get(self.phase, step)
        wrap = f" ({config.fsdp_wrap} wrap)" if config.strategy == "fsdp2" else ""
        run = f"{config.strategy}{wrap}, preset {config.preset}"
        batch = f"batch {config.local_batch_size(launch.world_size)} a rank"
        print(
            f"python -m {config.module}: error: rank {launch.rank} of {launch.world_size} {what}, "
            f"{where} of {run}, {batch}; {'the result is complete' if self._reported else 'there is no result'}",
            file=sys.stderr,
        )

    def _report_failure(self, outcome: Outcome) -> None:
        """Write the result of a run that ends now; whoever comes second waits here for the end of the process.

        Whatever goes wrong here is said and left at that: the other ranks have yet to hear of the failure itself.
        """
        self._reporting.acquire()
        try:
            report(self.config, failed_result(self, outcome))
        except RunError as error:
            print(f"error: {describe_outcome(outcome)}; and there is no result: {error}", file=sys.stderr)
        except Exception:
            traceback.print_exc()
