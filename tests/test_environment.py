import os

import pytest
import torch

from common import environment
from common.environment import choose_device, limit_cpu_threads, steering_variables, variables_set_by_libraries
from common.errors import RunError
from common.launch import INHERITED
from common.options import RunConfig
from tests.worlds import launch_of


@pytest.fixture
def gpus(monkeypatch):
    def pretend(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return pretend


@pytest.fixture
def threads(monkeypatch):
    """The numbers of threads that were set, on a machine with 8 cores."""
    seen = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delenv("OMP_NUM_THREADS")
    return seen


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "NCCL_ALGO", "OMP_PROC_BIND", "PYTORCH_CUDA_ALLOC_CONF"])
def test_a_variable_that_steers_the_run_is_recorded(monkeypatch, name):
    monkeypatch.setenv(name, "value")
    assert steering_variables()[name] == "value"


@pytest.mark.parametrize("name", ["PATH", "MY_NCCL_NOTES", "PYTORCH_NVML_BASED_CUDA_CHECK"])
def test_a_variable_that_steers_nothing_is_not_recorded(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert name not in steering_variables()


def test_what_a_library_sets_is_told_from_what_the_process_began_with(monkeypatch):
    began_with = next(iter(INHERITED))
    monkeypatch.setattr(environment, "STEERING", (began_with, "CUDA_"))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert {began_with, "CUDA_DEVICE_ORDER"} <= steering_variables().keys()
    assert variables_set_by_libraries() == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def choose(device: str, rank: int = 1, world_size: int = 2) -> torch.device:
    return choose_device(RunConfig("native", "ddp", device=device), launch_of(rank, world_size))


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_rank_takes_the_gpu_of_its_local_rank(gpus, device):
    gpus(2)
    assert choose(device) == torch.device("cuda", 1)


def test_auto_takes_the_cpu_where_there_is_no_gpu(gpus):
    gpus(0)
    assert choose("auto") == torch.device("cpu")


def test_the_cpu_can_be_chosen_where_there_are_gpus(gpus):
    gpus(2)
    assert choose("cpu") == torch.device("cpu")


def test_cuda_without_a_gpu_is_answered_with_what_to_do(gpus):
    gpus(0)
    with pytest.raises(RunError, match="--device cuda, but PyTorch sees no GPU here; use --device cpu"):
        choose("cuda")


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_more_ranks_than_gpus_are_refused_with_both_numbers(gpus, device):
    gpus(1)
    with pytest.raises(RunError, match="2 ranks on this node, but 1 visible GPUs; start 1 ranks"):
        choose(device, rank=0)


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize("visible", ["7", "GPU-0aae57b8-no-such", "MIG-12345678"])
def test_a_gpu_that_is_named_and_not_there_is_refused_instead_of_training_on_the_cpu(
    gpus, monkeypatch, device, visible
):
    gpus(0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(RunError, match=f"CUDA_VISIBLE_DEVICES={visible}, but PyTorch sees no such GPU here"):
        choose(device)


@pytest.mark.parametrize(("visible", "build"), [("", "13.0"), ("-1", "13.0"), ("7", None)])
def test_hidden_gpus_and_a_build_for_cpus_train_on_the_cpu(gpus, monkeypatch, visible, build):
    gpus(0)
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert choose("auto") == torch.device("cpu")


def test_a_gpu_that_is_not_there_does_not_hinder_a_run_on_the_cpu(gpus, monkeypatch):
    gpus(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert choose("cpu") == torch.device("cpu")


def test_too_few_gpus_are_shown_with_the_variable_that_chose_them(gpus, monkeypatch):
    gpus(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937,GPU-gone")
    with pytest.raises(RunError, match=r"but 1 visible GPUs \(CUDA_VISIBLE_DEVICES=GPU-8932f937,GPU-gone\)"):
        choose("auto")


@pytest.mark.parametrize(("ranks", "share"), [(1, 8), (2, 4), (3, 2), (16, 1)])
def test_the_ranks_of_a_node_share_its_cores(threads, ranks, share):
    limit_cpu_threads(launch_of(0, ranks))
    assert threads == [share]


def test_workers_started_later_inherit_the_share(threads):
    limit_cpu_threads(launch_of(0, 2))
    assert os.environ["OMP_NUM_THREADS"] == "4"


def test_a_stated_number_of_threads_is_left_alone(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    limit_cpu_threads(launch_of(0, 2))
    assert threads == []
