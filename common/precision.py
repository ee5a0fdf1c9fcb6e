"""Which precision to compute in, resolved once and in the same way on both sides."""

from dataclasses import dataclass

import torch

NATIVE_BF16_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Precision:
    """The answer and why."""

    resolved: str
    """``fp32`` or ``bf16`` (parameters and optimizer state stay float32 in both)."""
    reason: str
    """One sentence for the result file."""


def resolve_precision(requested: str, device: torch.device) -> Precision:
    """Resolve ``auto``, ``fp32`` or ``bf16`` for ``device``.

    ``auto`` takes bf16 only where the hardware computes it natively, that is from CUDA compute capability 8.0 on;
    ``torch.cuda.is_bf16_supported()`` also says yes where bf16 is emulated. An explicit request is always honoured.
    """
    native_bf16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= NATIVE_BF16_CAPABILITY
    if device.type == "cuda":
        capability = "compute capability {}.{}".format(*torch.cuda.get_device_capability(device))
        hardware = f"{torch.cuda.get_device_name(device)} ({capability})"
    else:
        hardware = "the CPU"
    verb = "computes" if native_bf16 else "does not compute"
    if requested == "auto":
        return Precision("bf16" if native_bf16 else "fp32", f"auto: {hardware} {verb} bf16 natively")
    emulated = requested == "bf16" and not native_bf16
    return Precision(requested, f"requested; {hardware} {verb} bf16 natively" if emulated else "requested")
