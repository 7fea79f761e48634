"""Devices to plan for: a small table of GPUs, from their makers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass

from stages.foundations.errors import UserError

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    memory_gb: float
    """10^9 bytes."""
    bfloat16_flops: float
    """Dense products, per second."""
    float32_flops: float
    """Without tensor cores, per second."""
    bandwidth: float
    """Bytes of its memory per second."""

    def flops(self, dtype: str) -> float:
        return self.float32_flops if dtype == "float32" else self.bfloat16_flops


def _gpu(name: str, memory_gb: float, bfloat16: float, float32: float, terabytes: float) -> Gpu:
    return Gpu(name, memory_gb, bfloat16 * 1e12, float32 * 1e12, terabytes * 1e12)


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("A100", 80, 312, 19.5, 2.04),  # NVIDIA A100 80GB data sheet, SXM
        _gpu("A800", 80, 312, 19.5, 2.04),  # as A100, with slower NVLink
        _gpu("H100", 80, 989, 67, 3.35),  # NVIDIA H100 data sheet, SXM, half of the figures with sparsity
        _gpu("H800", 80, 989, 67, 3.35),  # as H100, with slower NVLink
        _gpu("H200", 141, 989, 67, 4.8),  # NVIDIA H200 data sheet, SXM, half of the figures with sparsity
        _gpu("H20", 96, 148, 44, 4.0),  # 148 TFLOP/s and 4.0 TB/s as reported; NVIDIA publishes no data sheet
        _gpu("L40S", 48, 362, 91.6, 0.864),  # NVIDIA L40S data sheet, half of the figures with sparsity
        # NVIDIA Ada GPU architecture, appendix A, products added up in float32.
        _gpu("RTX4090", 24, 165, 82.6, 1.008),
        _gpu("B200", 180, 2250, 80, 8.0),  # NVIDIA DGX B200 data sheet, an eighth, sparse figures halved
    )
}
NUMBER_BYTES = {"float32": 4, "mixed": 2, "bfloat16": 2, "float16": 2, "auto": 2}


def find_gpu(name: str) -> Gpu:
    """UserError names the GPUs of the table."""
    found = GPUS.get(name.upper().replace("-", "").replace(" ", ""))
    if found is None:
        raise UserError(
            f"no GPU {name!r} in the table: there are {', '.join(GPUS)}, and `cpu`, which is measured"
        )
    return found
