"""Memory: storage of live tensors, the counters of CUDA by a pretended GPU, and what a CPU has instead."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from common.data import make_batch
from common.memory import GIB, MemoryMeter, storage_gib
from common.options import RunConfig
from tests.runs import Cell
from tests.worlds import CPU, fake_world, launch_of, tiny_model

CUDA = torch.device("cuda", 0)
CONFIG = RunConfig("native", "ddp", preset="tiny")
BYTES_OF_PARAMETERS = 364_160 * 4


@pytest.fixture
def trained():
    """A model after one step, and its optimizer."""
    model = tiny_model(launch_of(0, 1), strategy="ddp")
    optimizer = torch.optim.AdamW(model.parameters())
    batch = make_batch(CONFIG.model, CONFIG.seed, 0, 1)
    F.cross_entropy(model(batch.tokens), batch.labels).backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose counters the test sets; allocated and reserved in bytes."""
    state = SimpleNamespace(peak=0, reserved=0, allocated=0, free=0, total=0, retries=0, resets=[])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: state.peak)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: state.reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: state.allocated)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (state.free, state.total))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_alloc_retries": state.retries})
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", state.resets.append)
    return state


class Nothing(nn.Module):
    pass


def nothing_to_hold():
    return Nothing(), SimpleNamespace(state={})


# Storage


def test_the_storage_of_a_tensor_is_its_bytes():
    assert storage_gib([torch.zeros(256, dtype=torch.float32)], CPU) * GIB == 1024


def test_storage_that_several_tensors_share_counts_once():
    bucket = torch.zeros(256)
    assert storage_gib([bucket, bucket[:128], bucket[128:].view(2, 64)], CPU) * GIB == 1024


def test_a_view_counts_with_all_of_its_storage_since_all_of_it_is_kept():
    assert storage_gib([torch.zeros(256)[:1]], CPU) * GIB == 1024


def test_tensors_on_another_device_do_not_count():
    assert storage_gib([torch.zeros(256)], CUDA) == 0
    assert storage_gib([torch.zeros(256, device="meta")], CPU) == 0


def test_only_the_shards_of_this_rank_count():
    with fake_world(0, 4) as launch:
        shards = storage_gib(tiny_model(launch).parameters(), CPU)
    assert shards * GIB == pytest.approx(BYTES_OF_PARAMETERS / 4, rel=0.02)


# A CPU


def test_gradients_take_what_the_parameters_take_and_adamw_twice_as_much(trained):
    memory = MemoryMeter(CPU).end_window(*trained)
    assert memory.parameters_gib * GIB == BYTES_OF_PARAMETERS
    assert memory.gradients_gib == memory.parameters_gib
    assert memory.optimizer_state_gib == pytest.approx(2 * memory.parameters_gib, rel=1e-3)  # and a step each
    assert memory.buffers_gib == 0


def test_gradients_that_were_freed_take_nothing(trained):
    trained[0].zero_grad()
    assert MemoryMeter(CPU).end_window(*trained).gradients_gib == 0


def test_a_cpu_has_no_counters_of_cuda(trained):
    memory = MemoryMeter(CPU)
    memory.release_setup()
    memory.start_window()
    found = memory.end_window(*trained)
    counters = (found.peak_allocated_gib, found.peak_reserved_gib, found.end_allocated_gib, found.device_used_gib)
    assert counters == (None,) * 4
    assert (found.setup_peak_allocated_gib, found.setup_peak_reserved_gib, found.allocation_retries) == (None,) * 3


def test_the_process_has_a_peak_of_plausible_size(trained):
    assert 0.05 < MemoryMeter(CPU).end_window(*trained).process_peak_resident_gib < 100


# A GPU


class TestWindowOfAGpu:
    @pytest.fixture
    def found(self, gpu):
        meter = MemoryMeter(CUDA)
        gpu.peak, gpu.reserved, gpu.retries = 6 * GIB, 7 * GIB, 3
        meter.start_window()
        gpu.peak, gpu.reserved, gpu.retries = 2 * GIB, 3 * GIB, 5
        gpu.allocated, gpu.free, gpu.total = GIB, 10 * GIB, 16 * GIB
        return meter.end_window(*nothing_to_hold())

    def test_has_peaks_of_its_own(self, found):
        assert (found.peak_allocated_gib, found.peak_reserved_gib) == (2.0, 3.0)

    def test_keeps_the_peaks_of_the_set_up_apart(self, found):
        assert (found.setup_peak_allocated_gib, found.setup_peak_reserved_gib) == (6.0, 7.0)

    def test_forgets_the_peaks_of_the_set_up_once(self, gpu, found):
        assert gpu.resets == [CUDA]

    def test_tells_what_is_allocated_at_its_end_and_what_the_device_has_in_use(self, found):
        assert (found.end_allocated_gib, found.device_used_gib) == (1.0, 6.0)

    def test_counts_its_own_retries(self, found):
        assert found.allocation_retries == 2


def test_what_the_set_up_left_reserved_is_given_back(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    MemoryMeter(CUDA).release_setup()
    MemoryMeter(CPU).release_setup()
    assert calls == ["emptied"]


# Real runs


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("implementation", ["native", "lightning"])
class TestRealRun:
    def test_holds_parameters_gradients_and_moments_one_to_one_to_two(self, runs, implementation, strategy):
        memory = runs.result(Cell(implementation, strategy)).memory
        assert memory.gradients_gib == pytest.approx(memory.parameters_gib, rel=0.02)
        assert memory.optimizer_state_gib == pytest.approx(2 * memory.parameters_gib, rel=0.02)

    def test_holds_its_share_of_the_parameters(self, runs, implementation, strategy):
        result = runs.result(Cell(implementation, strategy))
        expected = result.parameters.local_parameter_elements * 4 / GIB
        assert result.memory.parameters_gib == pytest.approx(expected, rel=0.02)

    def test_has_laps_that_add_up_to_its_window(self, runs, implementation, strategy):
        assert runs.result(Cell(implementation, strategy)).timing.laps_over_window == pytest.approx(1, abs=0.05)
