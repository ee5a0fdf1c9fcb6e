"""Results for tests of the comparison, without a run."""

import copy
import json
from pathlib import Path
from typing import Any

from common.result import Result, write_result

BASE: dict[str, Any] = {
    "schema_version": "1.0",
    "implementation": "native",
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
        "process_group_backend": "nccl",
        "precision_requested": "auto",
        "precision_reason": "auto",
        "device_name": "NVIDIA H200",
        "cpu_model": "a CPU",
        "cpu_count": 16,
        "cpu_threads": 8,
        "float32_matmul_precision": "highest",
        "cudnn_benchmark": False,
        "deterministic_algorithms": False,
        "platform": "Linux",
        "python_version": "3.11.7",
        "torch_version": "2.13.0",
        "lightning_version": None,
        "cuda_version": "13.0",
        "nccl_version": "2.29.1",
    },
    "timing": {
        "laps_milliseconds": [10.0, 10.0],
        "elapsed_seconds": 0.02,
        "milliseconds_per_step": 10.0,
        "milliseconds_per_step_median": 10.0,
        "samples_per_second": 200.0,
        "tokens_per_second": 6400.0,
    },
    "memory": {
        "peak_allocated_gib": 1.5,
        "peak_allocated_gib_min": 1.5,
        "peak_reserved_gib": 2.0,
        "peak_reserved_gib_min": 2.0,
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
    "outcome": {"status": "completed"},
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
    return data


def make_result(implementation: str = "native", **changes: Any) -> Result:
    """Return a valid result; see :func:`make_data`."""
    return Result.model_validate_json(json.dumps(make_data(implementation, **changes)))


def timed(milliseconds: float) -> dict[str, Any]:
    """Return the changes that give a result this time a step."""
    return {
        "timing__milliseconds_per_step": milliseconds,
        "timing__milliseconds_per_step_median": milliseconds,
        "timing__elapsed_seconds": milliseconds * 2e-3,
        "timing__tokens_per_second": 64e3 / milliseconds,
    }


def save(folder: Path, name: str, implementation: str = "native", **changes: Any) -> Path:
    """Write a result file and return its path."""
    path = folder / name
    write_result(path, make_result(implementation, **changes), overwrite=False)
    return path
