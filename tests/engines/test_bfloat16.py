"""Users who compute bfloat16 on a CPU without instructions for it get a warning with the remedy."""

from pathlib import Path

import pytest
import torch

from stages.engines import devices
from stages.engines.policies.language_model import language_model
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.foundations.machine import is_bfloat16_slow
from tests.fakes.engine_params import ADAMW, TORCH_SAMPLER, TORCH_TRAINER


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="only Linux names the instructions there")
def test_the_flags_say_what_torch_says_of_this_cpu():
    """The test asks the function that torch calls before each product; no other part of it is public."""
    assert is_bfloat16_slow() is not torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.mark.parametrize(
    ("text", "is_slow"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 fma\n", True),
        ("flags\t\t: fpu avx2 avx512f avx512bw\n", False),
        ("Features\t: fp asimd bf16\n", False),
        ("Features\t: fp asimd\n", True),
        ("no such line\n", False),
        (None, False),
    ],
)
def test_a_cpu_without_flags_is_not_called_slow(tmp_path, text, is_slow):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert is_bfloat16_slow(tmp_path / "cpuinfo") is is_slow


@pytest.mark.parametrize("is_slow", [True, False])
def test_trainer_and_sampler_say_so_where_it_is_slow(policy, capfd, monkeypatch, is_slow):
    monkeypatch.setattr(devices, "is_bfloat16_slow", lambda: is_slow)
    for dtype in ("float32", "mixed"):
        params = TORCH_TRAINER.model_copy(update={"dtype": dtype})
        TorchTrainer(params, ADAMW, 1.0, language_model(policy, params))
    for dtype in ("float32", "bfloat16"):
        TorchSampler.from_folder(TORCH_SAMPLER.model_copy(update={"dtype": dtype}), policy)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("slow: ")]
    assert len(lines) == (2 if is_slow else 0)
    for line, setting in zip(lines, ("trainer.dtype: mixed", "sampler.dtype: bfloat16"), strict=False):
        assert setting in line and "float32" in line
