"""Results for tests of the comparison, without a run."""

import copy
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.result import Result, write_result
from comparison.loading import Run
from comparison.pairing import Pair

BASE: dict[str, Any] = {
    "schema_version": "1.0",
    "implementation": "native",
    "label": None,
    "workload": {
        "strategy": "ddp",
        "fsdp_wrap": None,
        "reshard_after_forward": None,
        "preset": "tiny",
        "model": {
            "blocks": 2,
            "hidden_size": 64,
            "heads": 4,
            "sequence_length": 32,
            "vocabulary_size": 4096,
            "classes": 16,
        },
        "global_parameter_count": 364160,
        "device_type": "cuda",
        "world_size": 2,
        "batch_size_per_device": 1,
        "global_batch_size": 2,
        "precision_resolved": "bf16",
        "seed": 1234,
        "warmup_steps": 1,
        "steps": 2,
        "memory_snapshot": False,
        "variants": [],
        "optimizer": {
            "name": "AdamW",
            "learning_rate": 1e-3,
            "beta1": 0.9,
            "beta2": 0.999,
            "epsilon": 1e-8,
            "weight_decay": 1e-2,
            "amsgrad": False,
            "foreach": None,
            "fused": None,
        },
        "initial_weights_sha256": "a" * 64,
        "batch_sha256": "b" * 64,
    },
    "environment": {
        "started_at": "2026-12-01T00:00:00+00:00",
        "command": ["python -m native"],
        "launcher": "torchrun",
        "num_nodes": 1,
        "local_world_size": 2,
        "hosts": ["node1"],
        "nodes_share_hardware": False,
        "slurm": None,
        "process_group_backend": "nccl",
        "timeout_seconds": 300,
        "precision_requested": "auto",
        "precision_reason": "auto",
        "device_name": "NVIDIA H200",
        "cpu_model": "a CPU",
        "cpu_count": 16,
        "cpu_threads": 8,
        "float32_matmul_precision": "highest",
        "cudnn_allow_tf32": True,
        "cudnn_benchmark": False,
        "deterministic_algorithms": False,
        "platform": "Linux",
        "python_version": "3.11.7",
        "torch_version": "2.13.0",
        "lightning_version": None,
        "cuda_version": "13.0",
        "nccl_version": "2.29.1",
        "driver_version": "580.95.05",
        "power_limit_watts": 700.0,
        "variables": {"OMP_NUM_THREADS": "8"},
    },
    "outcome": {
        "status": "completed",
        "phase": None,
        "step": None,
        "rank": None,
        "requested_gib": None,
        "free_gib": None,
        "message": None,
    },
    "choices": {
        "zero_grad": "before forward",
        "autocast_cache": True,
        "allocator_streams": None,
        "variables": {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
        "ddp": {
            "bucket_cap_mib": 25.0,
            "gradient_as_bucket_view": True,
            "broadcast_buffers": True,
            "find_unused_parameters": False,
            "static_graph": False,
        },
    },
    "timing": {
        "laps_milliseconds": [10.0, 10.0],
        "laps_over_window": 1.0,
        "elapsed_seconds": 0.02,
        "milliseconds_per_step": 10.0,
        "milliseconds_per_step_median": 10.0,
        "milliseconds_per_step_p10": 10.0,
        "milliseconds_per_step_p90": 10.0,
        "milliseconds_per_step_min": 10.0,
        "milliseconds_per_step_max": 10.0,
        "milliseconds_per_step_iqr": 0.0,
        "milliseconds_per_step_median_slowest_rank": 10.0,
        "samples_per_second": 200.0,
        "tokens_per_second": 6400.0,
    },
    "memory": {
        "peak_allocated_gib": 1.5,
        "peak_allocated_gib_min": 1.5,
        "peak_reserved_gib": 2.0,
        "peak_reserved_gib_min": 2.0,
        "setup_peak_allocated_gib": 1.25,
        "setup_peak_allocated_gib_min": 1.25,
        "setup_peak_reserved_gib": 2.0,
        "setup_peak_reserved_gib_min": 2.0,
        "device_used_gib": 3.0,
        "device_used_gib_min": 3.0,
        "end_allocated_gib": 1.0,
        "allocation_retries": 0,
        "parameters_gib": 0.25,
        "gradients_gib": 0.25,
        "optimizer_state_gib": 0.5,
        "buffers_gib": 0.0,
        "activations_and_temporary_gib": 0.5,
        "process_peak_resident_gib": 1.0,
        "process_peak_resident_gib_min": 1.0,
    },
    "parameters": {
        "local_parameter_elements": 364160,
        "local_parameter_elements_min": 364160,
        "local_parameter_fraction": 1.0,
    },
    "correctness": {
        "losses": [2.75, 2.5, 2.25],
        "final_loss_mean": 2.25,
        "step1_gradient_norm": 11.0,
        "parameter_checksum_sum": 300.0,
        "parameter_checksum_squared_sum": 400.0,
        "parameters_synchronized": True,
        "every_shard_changed": True,
        "final_weights_sha256": "c" * 64,
    },
    "responsibilities": None,
}


def make_data(implementation: str = "native", **changes: Any) -> dict[str, Any]:
    """Return a result as plain data; ``changes`` are leaves by dotted name, with ``__`` for the dot."""
    data = copy.deepcopy(BASE)
    data["implementation"] = implementation
    data["environment"]["lightning_version"] = "2.6.6" if implementation == "lightning" else None
    for name, value in changes.items():
        *sections, leaf = name.split("__")
        target = data
        for section in sections:
            target = target[section]
        assert leaf in target, f"no such field: {name}"
        target[leaf] = value
    _fit_to_steps(data, changes)
    return data


def _fit_to_steps(data: dict[str, Any], changes: dict[str, Any]) -> None:
    """Give ``data`` as many laps and losses as it has steps, unless a change says which."""
    steps, warmup_steps = (data["workload"][name] for name in ("steps", "warmup_steps"))
    for section, name, count in (
        ("timing", "laps_milliseconds", steps),
        ("correctness", "losses", warmup_steps + steps),
    ):
        numbers = isinstance(count, int) and count < 10_000 and data[section] is not None
        if numbers and f"{section}__{name}" not in changes:
            data[section][name] = (data[section][name] * count)[:count]


def make_result(implementation: str = "native", **changes: Any) -> Result:
    """Return a valid result; see :func:`make_data`."""
    return Result.model_validate_json(json.dumps(make_data(implementation, **changes)))


def make_pair(baseline: Sequence[dict], other: Sequence[dict], implementation: str = "lightning") -> Pair:
    """Return a pair of native runs and of ``implementation``'s, one run for each dictionary of changes."""
    return Pair(
        tuple(Run(Path(f"a{number}.json"), make_result("native", **each)) for number, each in enumerate(baseline)),
        tuple(Run(Path(f"b{number}.json"), make_result(implementation, **each)) for number, each in enumerate(other)),
    )


def timed(milliseconds: float) -> dict[str, Any]:
    """Return the changes that give a result this time in every step."""
    return lapped([milliseconds] * 2)


def lapped(laps: list[float]) -> dict[str, Any]:
    """Return the changes that give a result these laps, in milliseconds, and what follows from them."""
    window, several = sum(laps), len(laps) > 1
    tenths = statistics.quantiles(laps, n=10, method="inclusive") if several else laps * 9
    quarters = statistics.quantiles(laps, n=4, method="inclusive") if several else None
    timing = {
        "laps_milliseconds": laps,
        "elapsed_seconds": window / 1e3,
        "milliseconds_per_step": window / len(laps),
        "milliseconds_per_step_median": statistics.median(laps),
        "milliseconds_per_step_p10": tenths[0],
        "milliseconds_per_step_p90": tenths[8],
        "milliseconds_per_step_min": min(laps),
        "milliseconds_per_step_max": max(laps),
        "milliseconds_per_step_iqr": quarters[2] - quarters[0] if quarters else None,
        "milliseconds_per_step_median_slowest_rank": statistics.median(laps),
        "samples_per_second": 2e3 * len(laps) / window if window else 0.0,
        "tokens_per_second": 64e3 * len(laps) / window if window else 0.0,
    }
    return {"workload__steps": len(laps)} | {f"timing__{name}": value for name, value in timing.items()}


OUT_OF_MEMORY: dict[str, Any] = {
    "outcome__status": "out_of_memory",
    "outcome__phase": "warmup",
    "outcome__step": 1,
    "outcome__rank": 1,
    "outcome__requested_gib": 2.0,
    "outcome__free_gib": 1.5,
    "outcome__message": "CUDA out of memory. Tried to allocate 2.00 GiB.",
    "workload__batch_sha256": None,
    **dict.fromkeys(("choices", "timing", "memory", "parameters", "correctness")),
}
"""The changes that make a result that of a run which ran out of memory."""


def save(folder: Path, name: str, implementation: str = "native", **changes: Any) -> Path:
    """Write a result file and return its path."""
    path = folder / name
    write_result(path, make_result(implementation, **changes), overwrite=False)
    return path
