"""Whether this machine's CPU has instructions for bfloat16."""

from __future__ import annotations

from pathlib import Path

ENOUGH = {"avx512bw", "avx_ne_convert", "bf16"}
"""Any of them, and torch multiplies bfloat16 by oneDNN (bf16: ARM)."""
REMEDY = (
    "set trainer.dtype and sampler.dtype to float32 (other numbers, within the noise), or take a GPU, or a CPU with "
    "AMX or AVX-512"
)


def is_bfloat16_slow(cpu: Path = Path("/proc/cpuinfo")) -> bool:
    """True where products in bfloat16 take 10 to 40 times as long as in float32 (docs/measurements.md).

    False where `cpu` does not say what the CPU has.
    """
    try:
        lines = cpu.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    named = next((line for line in lines if line.lower().startswith(("flags", "features"))), None)
    return named is not None and not ENOUGH & set(named.partition(":")[2].split())
