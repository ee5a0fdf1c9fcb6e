"""Who does each duty of distributed training on either side, and where.

The catalogue names statements; their lines are found in the live source whenever somebody asks, so that they cannot go
stale.
"""

from comparison.responsibilities import Owner, Responsibility, Who
from comparison.source import Place


def _ours(file: str, function: str, contains: str) -> Place:
    return Place("project", file, function, contains)


def _theirs(file: str, function: str, contains: str) -> Place:
    return Place("lightning", f"lightning/{file}", function, contains)


def _by(who: Who, what: str, *places: Place) -> Owner:
    return Owner(who, what, places)


# Files that are named more than once.
TRAIN = "native/train.py"
PARALLELIZE = "native/parallelize.py"
GROUP = "native/process_group.py"
MODULE = "lightning_impl/module.py"
STRATEGIES = "lightning_impl/strategy.py"
LAUNCH = "common/launch.py"
RECORDER = "common/recorder.py"
DDP = "pytorch/strategies/ddp.py"
MODEL_PARALLEL = "pytorch/strategies/model_parallel.py"
STRATEGY = "pytorch/strategies/strategy.py"
CONNECTORS = "pytorch/trainer/connectors"
LAUNCHERS = "pytorch/strategies/launchers"
CALL = "pytorch/trainer/call.py"
FIT_LOOP = "pytorch/loops/fit_loop.py"
EPOCH_LOOP = "pytorch/loops/training_epoch_loop.py"
AUTOMATIC = "pytorch/loops/optimization/automatic.py"
CORE_MODULE = "pytorch/core/module.py"
DISTRIBUTED = "fabric/utilities/distributed.py"

# Owners that are the same on both sides.
ANY_LAUNCHER = _by("launcher", "torchrun or srun starts one process a rank")
CPU_THREADS = _by(
    "common",
    "cores shared among the ranks of a node",
    _ours("common/environment.py", "limit_cpu_threads", "torch.set_num_threads(threads)"),
)
WINDOW_BARRIER = _by(
    "common", "one, before the timed window", _ours(RECORDER, "RunRecorder._open_window", "dist.barrier(")
)
RANK_ZERO = _by(
    "common",
    "rank 0 alone has a result, and writes it",
    _ours(RECORDER, "RunRecorder.finish", "if self.launch.rank == 0"),
    _ours("common/report.py", "report", "write_result("),
)

# Places that are the same on both sides.
CHECK_LAYOUT = _ours(LAUNCH, "detect_launch", "_check_layout(config, launch)")
FILL = _ours("common/initialization.py", "fill_parameters", "local.copy_(")
DRAW = _ours("common/data.py", "make_batch", "manual_seed(seed + rank")
LAP = _ours(RECORDER, "RunRecorder.after_step", "self.timer.lap()")
GATHER = _ours(RECORDER, "RunRecorder.finish", "dist.all_gather_object(reports")

DUTIES = (
    Responsibility("launching", ANY_LAUNCHER, ANY_LAUNCHER),
    Responsibility(
        "rank discovery",
        _by(
            "common",
            "read from the launcher's variables",
            _ours(LAUNCH, "_from_torchrun", "_integers(environ"),
            _ours(LAUNCH, "_from_srun", "_integers(environ"),
        ),
        _by(
            "lightning",
            "a cluster environment reads the same variables",
            _theirs(
                f"{CONNECTORS}/accelerator_connector.py",
                "_AcceleratorConnector._choose_and_init_cluster_environment",
                "if env_type.detect():",
            ),
            _theirs(
                "fabric/plugins/environments/torchelastic.py",
                "TorchElasticEnvironment.global_rank",
                'os.environ["RANK"]',
            ),
            _theirs(
                "fabric/plugins/environments/slurm.py", "SLURMEnvironment.global_rank", 'os.environ["SLURM_PROCID"]'
            ),
        ),
        "The process group takes Lightning's ranks; lightning_impl reads them too, to check and to size the Trainer.",
    ),
    Responsibility(
        "launch check",
        _by("common", "options and layout must fit the launcher", CHECK_LAYOUT),
        _by(
            "lightning_impl",
            "the same, and Lightning is told the launcher",
            CHECK_LAYOUT,
            _ours(STRATEGIES, "launcher_plugins", "return [TorchElasticEnvironment("),
            _ours(STRATEGIES, "launcher_plugins", "return [SLURMEnvironment("),
        ),
        "Lightning compares devices and num_nodes with the launcher's numbers in its launcher object only, which "
        "ModelParallelStrategy lacks under torchrun and srun: wrong numbers pass unnoticed there.",
    ),
    Responsibility(
        "CPU threads",
        CPU_THREADS,
        CPU_THREADS,
        "Lightning does this for DDPStrategy, but not for ModelParallelStrategy under torchrun or srun.",
    ),
    Responsibility(
        "strategy choice",
        _by(
            "native",
            "a branch: shard or replicate",
            _ours(PARALLELIZE, "build_model", "shard(model, config"),
            _ours(TRAIN, "train", "replicate(model, device) if"),
        ),
        _by(
            "lightning_impl",
            "a strategy object and its sizes",
            _ours(STRATEGIES, "make_strategy", "return DDPStrategy("),
            _ours(STRATEGIES, "make_strategy", "return ModelParallelStrategy("),
        ),
        "ModelParallelStrategy's default sizes make all ranks of a node one tensor-parallel group: on one node nothing "
        "is sharded and every rank sees the same data.",
    ),
    Responsibility(
        "device binding",
        _by(
            "native",
            "this rank's GPU becomes the current one",
            _ours(GROUP, "bind_device", "torch.cuda.set_device(device)"),
        ),
        _by(
            "lightning",
            "the accelerator does it when fit begins",
            _theirs(STRATEGY, "Strategy.setup_environment", "self.accelerator.setup_device("),
            _theirs("pytorch/accelerators/cuda.py", "CUDAAccelerator.setup_device", "torch.cuda.set_device(device)"),
        ),
        calls=("set_device",),
    ),
    Responsibility(
        "process group",
        _by(
            "native",
            "NCCL between GPUs, gloo between CPUs",
            _ours(GROUP, "init_process_group", "dist.init_process_group("),
        ),
        _by(
            "lightning",
            "the strategy opens it when fit begins",
            _theirs(DDP, "DDPStrategy.setup_distributed", "_init_dist_connection("),
            _theirs(MODEL_PARALLEL, "ModelParallelStrategy._setup_distributed", "_init_dist_connection("),
            _theirs(DISTRIBUTED, "_init_dist_connection", "torch.distributed.init_process_group("),
        ),
        "It opens inside fit(), not when the Trainer is made: until then there is nothing to communicate with.",
        calls=("init_process_group",),
    ),
    Responsibility(
        "device mesh",
        _by("native", "for FSDP2: one dimension, all ranks", _ours(PARALLELIZE, "shard", "init_device_mesh(")),
        _by(
            "lightning",
            "for FSDP2: two dimensions, data and tensor parallel",
            _theirs(
                MODEL_PARALLEL, "ModelParallelStrategy.setup_environment", "self._device_mesh = _setup_device_mesh("
            ),
            _theirs("fabric/strategies/model_parallel.py", "_setup_device_mesh", "return init_device_mesh("),
        ),
        "fully_shard without a mesh takes one over all ranks by itself; native makes its own to show it.",
        calls=("init_device_mesh",),
    ),
    Responsibility(
        "model creation",
        _by(
            "native",
            "on the meta device, without storage",
            _ours(PARALLELIZE, "build_model", "SyntheticTransformer(config.model)"),
        ),
        _by(
            "lightning_impl",
            "the same, in the hook configure_model",
            _ours(MODULE, "TransformerBenchmark.configure_model", "SyntheticTransformer(self.config.model)"),
        ),
        "Lightning calls configure_model once there is a mesh; in __init__ there would be nothing to shard over.",
        calls=("SyntheticTransformer",),
    ),
    Responsibility(
        "parameter materialisation",
        _by(
            "native",
            "storage, then the common starting weights",
            _ours(PARALLELIZE, "build_model", "model.to_empty("),
            FILL,
        ),
        _by(
            "lightning_impl",
            "the same, in the hook configure_model",
            _ours(MODULE, "TransformerBenchmark.configure_model", "model.to_empty("),
            FILL,
        ),
        "ModelParallelStrategy would materialise what is left on meta by reset_parameters, which nn.MultiheadAttention "
        "lacks: its weights would be uninitialised memory, with no more than a warning.",
        calls=("Module.to_empty", "fill_parameters"),
    ),
    Responsibility(
        "DDP wrap",
        _by("native", "around the model", _ours(PARALLELIZE, "replicate", "return DistributedDataParallel(")),
        _by(
            "lightning",
            "around the whole LightningModule",
            _theirs(DDP, "DDPStrategy._setup_model", "return DistributedDataParallel("),
            _theirs(STRATEGY, "_ForwardRedirection.__call__", "wrapper_output = wrapper_module("),
        ),
        "Lightning lends training_step to DDP as its forward, so the loss is computed inside the wrapper too.",
        calls=("DistributedDataParallel",),
    ),
    Responsibility(
        "FSDP2 wrap",
        _by(
            "native",
            "fully_shard on each block, then on the root",
            _ours(PARALLELIZE, "shard", "fully_shard(block"),
            _ours(PARALLELIZE, "shard", "fully_shard(model"),
        ),
        _by(
            "lightning_impl",
            "the same calls, on Lightning's mesh",
            _ours(MODULE, "TransformerBenchmark.shard", "fully_shard(block"),
            _ours(MODULE, "TransformerBenchmark.shard", "fully_shard(model"),
        ),
        "Where to cut is a decision about the model, and Lightning leaves it with you.",
        calls=("fully_shard",),
    ),
    Responsibility(
        "mixed precision, DDP",
        _by(
            "native",
            "autocast around forward and loss",
            _ours(TRAIN, "train", "autocast = torch.autocast("),
            _ours(TRAIN, "training_step", "with autocast:"),
        ),
        _by(
            "lightning",
            "autocast around training_step",
            _theirs(
                "pytorch/plugins/precision/amp.py",
                "MixedPrecision.autocast_context_manager",
                "return torch.autocast(",
            ),
            _theirs(STRATEGY, "Strategy.training_step", "with self.precision_plugin.train_step_context():"),
        ),
        "Lightning enters autocast with cache_enabled=False, PyTorch's default is True: a weight used twice in a step "
        "is cast twice.",
        calls=("autocast",),
    ),
    Responsibility(
        "mixed precision, FSDP2",
        _by(
            "native",
            "MixedPrecisionPolicy for fully_shard",
            _ours(PARALLELIZE, "shard", "policy = MixedPrecisionPolicy(param_dtype"),
        ),
        _by(
            "lightning_impl",
            "MixedPrecisionPolicy for fully_shard",
            _ours(MODULE, "TransformerBenchmark.shard", "policy = MixedPrecisionPolicy(param_dtype"),
        ),
        "The Trainer's precision stays 32-true here; bf16-mixed would put autocast on top of the policy.",
        calls=("MixedPrecisionPolicy",),
    ),
    Responsibility(
        "batch sharding",
        _by("native", "each rank draws its own samples", _ours(TRAIN, "train", "batch = make_batch("), DRAW),
        _by(
            "lightning_impl",
            "each rank draws its own samples",
            _ours(MODULE, "TransformerBenchmark.on_train_start", "self.batch = make_batch("),
            DRAW,
        ),
        "Into a DataLoader Lightning would put a shuffling DistributedSampler, unless use_distributed_sampler=False.",
        calls=("make_batch", "DataLoader", "DistributedSampler"),
    ),
    Responsibility(
        "optimizer construction",
        _by("native", "AdamW, after sharding", _ours(TRAIN, "train", "torch.optim.AdamW(")),
        _by(
            "lightning_impl",
            "AdamW, in the hook configure_optimizers",
            _ours(MODULE, "TransformerBenchmark.configure_optimizers", "return torch.optim.AdamW("),
        ),
        "The optimizer must see the shards; Lightning keeps the order by calling this hook after configure_model.",
        calls=("Optimizer",),
    ),
    Responsibility(
        "train mode",
        _by("native", "switched on", _ours(TRAIN, "train", "wrapped.train()")),
        _by(
            "nobody",
            "not switched on; a warning if eval mode is found",
            _theirs(FIT_LOOP, "_FitLoop._warn_if_modules_in_eval_mode", "if eval_modules:"),
        ),
        "Modules are born in train mode, and since Lightning 2.2 fit() leaves each in the mode it finds.",
        calls=("Module.train",),
    ),
    Responsibility(
        "deterministic kernels",
        _by(
            "native",
            "asked for with --deterministic",
            _ours(TRAIN, "choose_kernels", "torch.use_deterministic_algorithms("),
            _ours(TRAIN, "choose_kernels", 'os.environ["CUBLAS_WORKSPACE_CONFIG"]'),
        ),
        _by(
            "lightning",
            "asked for by the Trainer's argument",
            _theirs(
                f"{CONNECTORS}/accelerator_connector.py",
                "_set_torch_flags",
                "torch.use_deterministic_algorithms(deterministic)",
            ),
            _theirs(
                f"{CONNECTORS}/accelerator_connector.py", "_set_torch_flags", 'os.environ["CUBLAS_WORKSPACE_CONFIG"]'
            ),
        ),
        "Without them, some CUDA kernels add in another order each time: two runs of one program may differ.",
        calls=("use_deterministic_algorithms",),
    ),
    Responsibility(
        "training loop",
        _by("native", "a for loop", _ours(TRAIN, "train", "for _ in range(config.total_steps):")),
        _by(
            "lightning",
            "a loop over epochs around a loop over batches",
            _theirs(FIT_LOOP, "_FitLoop.run", "while not self.done:"),
            _theirs(EPOCH_LOOP, "_TrainingEpochLoop.run", "while not self.done:"),
        ),
    ),
    Responsibility(
        "zero_grad",
        _by("native", "before the forward", _ours(TRAIN, "training_step", "optimizer.zero_grad()")),
        _by(
            "lightning",
            "after the forward, before the backward",
            _theirs(AUTOMATIC, "Closure.closure", "self._zero_grad_fn()"),
            _theirs(CORE_MODULE, "LightningModule.optimizer_zero_grad", "optimizer.zero_grad()"),
        ),
        "Lightning zeroes AFTER the forward: the last step's gradients still take memory while activations pile up.",
        calls=("zero_grad",),
    ),
    Responsibility(
        "forward and loss",
        _by(
            "native",
            "model and cross-entropy",
            _ours(TRAIN, "training_step", "logits = model("),
            _ours(TRAIN, "training_step", "F.cross_entropy("),
        ),
        _by(
            "lightning_impl",
            "the same, in the hook training_step",
            _ours(MODULE, "TransformerBenchmark.training_step", "logits = self.model("),
            _ours(MODULE, "TransformerBenchmark.training_step", "F.cross_entropy("),
        ),
        calls=("forward",),
    ),
    Responsibility(
        "backward",
        _by("native", "one call", _ours(TRAIN, "training_step", "loss.backward()")),
        _by(
            "lightning",
            "by way of strategy and precision plugin",
            _theirs(STRATEGY, "Strategy.backward", "self.precision_plugin.backward("),
            _theirs(CORE_MODULE, "LightningModule.backward", "loss.backward(*args"),
        ),
        "Averaging the gradients is PyTorch's work on both sides: DDP and FSDP2 hook into the backward.",
        calls=("backward",),
    ),
    Responsibility(
        "optimizer step",
        _by("native", "one call", _ours(TRAIN, "training_step", "optimizer.step()")),
        _by(
            "lightning",
            "one call, with the rest of the step as its closure",
            _theirs(
                "pytorch/plugins/precision/precision.py",
                "Precision.optimizer_step",
                "return optimizer.step(closure=closure",
            ),
        ),
        "Under Lightning forward, zero_grad and backward run inside optimizer.step(), which calls them as a closure.",
        calls=("optimizer.step",),
    ),
    Responsibility(
        "barriers",
        WINDOW_BARRIER,
        WINDOW_BARRIER,
        "Lightning has more, before the first step: see startup barriers.",
        calls=("barrier",),
    ),
    Responsibility(
        "timing",
        _by("common", "laps from step end to step end", _ours(TRAIN, "train", "recorder.after_step(loss)"), LAP),
        _by(
            "common",
            "the same, in the hook on_train_batch_end",
            _ours(MODULE, "TransformerBenchmark.on_train_batch_end", "self.recorder.after_step("),
            LAP,
        ),
        "A lap begun in on_train_batch_start would miss the SIGTERM broadcast and the batch fetch, both earlier.",
    ),
    Responsibility(
        "metric reduction",
        _by("common", "one gather after the last step", _ours(TRAIN, "train", "recorder.finish()"), GATHER),
        _by(
            "common",
            "the same, in the hook on_train_end",
            _ours(MODULE, "TransformerBenchmark.on_train_end", "self.recorder.finish()"),
            GATHER,
        ),
        "self.log(..., sync_dist=True) would reduce for you, with a barrier and an all-reduce for each metric.",
        calls=("all_gather_object",),
    ),
    Responsibility(
        "rank-zero output",
        RANK_ZERO,
        RANK_ZERO,
        "Lightning's own output (logger, checkpoints, progress bar) is turned off by barebones=True.",
    ),
    Responsibility(
        "teardown",
        _by(
            "native",
            "meet once more, destroy the process group",
            _ours(GROUP, "destroy_process_group", "dist.destroy_process_group()"),
        ),
        _by(
            "lightning_impl",
            "the same; Lightning has an exit hook, for NCCL only",
            _ours(STRATEGIES, "destroy_process_group", "dist.destroy_process_group()"),
            _theirs(DISTRIBUTED, "_init_dist_connection", "atexit.register("),
        ),
        "fit() leaves the process group open; with gloo nothing ever closes it, and the process can abort at exit.",
        calls=("destroy_process_group", "barrier"),
    ),
)
"""What native must do, in the order in which a run does it."""

ADDITIONS = (
    Responsibility(
        "worker launch",
        _by("nobody", "without a launcher: a world of one"),
        _by(
            "lightning",
            "without a launcher: starts the other ranks itself",
            _theirs(
                f"{LAUNCHERS}/subprocess_script.py",
                "_SubprocessScriptLauncher._call_children_scripts",
                "subprocess.Popen(",
            ),
        ),
        "It runs the same command once more for every further rank of the node, with LOCAL_RANK and friends set.",
        calls=("Popen",),
    ),
    Responsibility(
        "log folder broadcast",
        _by("nobody", ""),
        _by(
            "lightning",
            "before the first step: rank 0's log_dir to all",
            _theirs("pytorch/trainer/trainer.py", "Trainer.log_dir", "self.strategy.broadcast(dirpath)"),
        ),
        "A Python object: two collectives, its size and its pickle, even where nothing is logged.",
        calls=("broadcast_object_list",),
    ),
    Responsibility(
        "startup barriers",
        _by("nobody", ""),
        _by(
            "lightning",
            "before the first step: five with DDP, six with FSDP2",
            _theirs(CALL, "_call_setup_hook", 'barrier("pre_setup")'),
            _theirs(CALL, "_call_setup_hook", 'barrier("post_setup")'),
            _theirs(MODEL_PARALLEL, "ModelParallelStrategy.setup", "self.barrier()"),
            _theirs(f"{CONNECTORS}/checkpoint_connector.py", "_CheckpointConnector.resume_end", "strategy.barrier("),
            _theirs("pytorch/trainer/trainer.py", "Trainer._run_stage", 'barrier("run-stage")'),
            _theirs(FIT_LOOP, "_FitLoop.setup_data", 'barrier("train_dataloader()")'),
        ),
        calls=("barrier",),
    ),
    Responsibility(
        "loader length check",
        _by("nobody", ""),
        _by(
            "lightning",
            "before the first step: ranks add up loader lengths",
            _theirs("pytorch/utilities/data.py", "has_len_all_ranks", "total_length = strategy.reduce("),
        ),
        "It is done twice, each time with a barrier and an all-reduce.",
        calls=("all_reduce", "barrier"),
    ),
    Responsibility(
        "move to device",
        _by("nobody", "the model is made there"),
        _by(
            "lightning",
            "before the first step: the whole module, wherever it is",
            _theirs(DDP, "DDPStrategy.setup", "self.model_to_device()"),
            _theirs(MODEL_PARALLEL, "ModelParallelStrategy.setup", "self.model_to_device()"),
        ),
        "Here configure_model has made the model on the device already, and moving it again changes nothing.",
        calls=("Module.to",),
    ),
    Responsibility(
        "CUDA cache clearing",
        _by("nobody", ""),
        _by(
            "lightning",
            "before the first step, and after fit",
            _theirs("fabric/accelerators/cuda.py", "_clear_cuda_memory", "torch.cuda.empty_cache()"),
            _theirs(
                f"{CONNECTORS}/checkpoint_connector.py", "_CheckpointConnector.resume_end", "torch.cuda.empty_cache()"
            ),
        ),
        "What PyTorch's allocator had kept goes back to the device, so the two sides may begin with other reserves.",
        calls=("empty_cache",),
    ),
    Responsibility(
        "signal handlers",
        _by(
            "common",
            "SIGTERM and SIGINT end the run at once",
            _ours("common/interruption.py", "watch_signals", "signal.signal(number"),
        ),
        _by(
            "lightning",
            "SIGTERM is noted; under Slurm, a signal to requeue",
            _theirs(
                f"{CONNECTORS}/signal_connector.py",
                "_SignalConnector.register_signal_handlers",
                "self._register_signal(signal.SIGTERM",
            ),
            _theirs(f"{CONNECTORS}/signal_connector.py", "_SignalConnector._register_signal", "signal.signal("),
        ),
        "In force while fit() runs; a run that SIGTERM ended this way would exit with code 0: the common part hears "
        "it first, and ends the run on both sides.",
        calls=("signal",),
    ),
    Responsibility(
        "SIGTERM broadcast",
        _by("nobody", ""),
        _by(
            "lightning",
            "each step: rank 0's flag to all, and a host sync",
            _theirs(EPOCH_LOOP, "_TrainingEpochLoop._broadcast_sigterm_tensor", "torch.distributed.broadcast("),
            _theirs(EPOCH_LOOP, "_TrainingEpochLoop._broadcast_sigterm_tensor", "sigterm_tensor.item()"),
        ),
        "Whenever there is more than one rank; .item() makes the host wait for the GPU, and barebones=True changes "
        "nothing about it.",
        calls=("broadcast", "item"),
    ),
    Responsibility(
        "batch fetch",
        _by("nobody", "the batch is on the device already"),
        _by(
            "lightning",
            "each step: next() on the loader, move to the device",
            _theirs(EPOCH_LOOP, "_TrainingEpochLoop.advance", "batch, _, __ = next(data_fetcher)"),
            _theirs(EPOCH_LOOP, "_TrainingEpochLoop.advance", '"batch_to_device"'),
        ),
        "Here the loader gives one integer a step; the real batch is on the device already, as in native.",
    ),
    Responsibility(
        "hooks and callbacks",
        _by("nobody", ""),
        _by(
            "lightning",
            "each step: calls at every stage, most of them empty",
            _theirs(CALL, "_call_callback_hooks", "fn(trainer, trainer.lightning_module"),
            _theirs(CALL, "_call_lightning_module_hook", "output = fn(*args"),
            _theirs(CALL, "_call_strategy_hook", "output = fn(*args"),
        ),
        "Lightning 2.6.6 made 22 such calls a step here: 12 to the module, 6 to all callbacks, 4 to the strategy.",
    ),
    Responsibility(
        "loss copies",
        _by("nobody", ""),
        _by(
            "lightning",
            "each step: loss / accumulation steps, and a clone",
            _theirs(AUTOMATIC, "ClosureResult.from_training_step_output", "closure_loss = closure_loss / normalize"),
            _theirs(AUTOMATIC, "ClosureResult._clone_loss", ".detach().clone()"),
        ),
        "Dividing by 1 changes no bit, but it is a kernel in the forward and another in the backward.",
    ),
    Responsibility(
        "exceptions",
        _by("nobody", "an exception ends the process"),
        _by(
            "lightning",
            "caught, told to hooks, cleaned up after, raised again",
            _theirs(CALL, "_call_and_handle_interrupt", "except BaseException as exception:"),
            _theirs(CALL, "_interrupt", '"on_exception"'),
        ),
    ),
    Responsibility(
        "move to CPU",
        _by("nobody", ""),
        _by(
            "lightning",
            "after fit with DDP: optimizer state and model",
            _theirs(STRATEGY, "Strategy.teardown", "_optimizers_to_device("),
            _theirs(STRATEGY, "Strategy.teardown", "self.lightning_module.cpu()"),
        ),
        "ModelParallelStrategy leaves its shards where they are.",
        calls=("Module.cpu",),
    ),
)
"""What Lightning does besides."""

CATALOGUE: tuple[Responsibility, ...] = DUTIES + ADDITIONS
"""Everything, in the order in which one would teach it."""
