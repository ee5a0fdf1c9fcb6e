import pytest
import torch

from common.precision import resolve_precision

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch):
    """Pretend to have a GPU of some compute capability, on which PyTorch would emulate bf16 if asked."""

    def pretend(*capability: int) -> torch.device:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Some GPU")
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *args, **kwargs: True)
        return CUDA

    return pretend


@pytest.mark.parametrize(
    ("capability", "resolved"),
    [((7, 0), "fp32"), ((7, 5), "fp32"), ((8, 0), "bf16"), ((8, 9), "bf16"), ((10, 0), "bf16")],
)
def test_auto_takes_bf16_only_where_the_gpu_computes_it_natively(gpu, capability, resolved):
    assert resolve_precision("auto", gpu(*capability)).resolved == resolved


def test_auto_takes_fp32_on_a_cpu():
    assert resolve_precision("auto", CPU).resolved == "fp32"


@pytest.mark.parametrize("requested", ["fp32", "bf16"])
@pytest.mark.parametrize("capability", [(7, 0), (9, 0)])
def test_an_explicit_request_is_honoured_on_any_gpu(gpu, requested, capability):
    assert resolve_precision(requested, gpu(*capability)).resolved == requested


@pytest.mark.parametrize("requested", ["fp32", "bf16"])
def test_an_explicit_request_is_honoured_on_a_cpu(requested):
    assert resolve_precision(requested, CPU).resolved == requested


def test_the_reason_of_auto_names_the_gpu_and_its_capability(gpu):
    reason = resolve_precision("auto", gpu(7, 5)).reason
    assert reason == "auto: Some GPU (compute capability 7.5) does not compute bf16 natively"


def test_the_reason_says_that_a_requested_bf16_is_emulated(gpu):
    assert "does not compute bf16 natively" in resolve_precision("bf16", gpu(7, 0)).reason


def test_the_reason_is_short_where_a_request_needs_none(gpu):
    assert resolve_precision("bf16", gpu(9, 0)).reason == "requested"
