"""A sampler that differs from the trainer on purpose: refused where the probe is bounded, measured where it is not."""

import pytest

from stages.__main__ import main
from stages.engines.samplers.params import TorchSamplerParams, VllmSamplerParams
from stages.foundations.errors import UserError
from stages.rl_round.params import sampler_contradictions
from tests.fakes.taught_policy import PARAMS, rl_flags, write_params
from tests.stages.rl_round.params.test_rl import load
from tests.stages.rl_round.test_stage import curve

VLLM = VllmSamplerParams(
    kind="vllm",
    dtype="float32",
    max_model_tokens=64,
    max_sequences=4,
    memory_fraction=0.5,
    kv_cache_gib=1.0,
    tensor_parallel=1,
    enforce_eager=True,
)


def test_a_sampler_that_differs_on_purpose_must_not_be_bounded():
    sampler = TorchSamplerParams.model_validate(PARAMS["sampler"])
    study = {"mismatch": {"kind": "bfloat16_weights"}}
    unbounded = load(weight_sync_check={"sequences": 2, "max_logprob_gap": None}, study=study)
    assert sampler_contradictions(load(), sampler) == sampler_contradictions(unbounded, sampler) == []
    assert "set it to null" in sampler_contradictions(load(study=study), sampler)[0]
    assert "set sampler.kind torch" in sampler_contradictions(unbounded, VLLM)[0]


def test_the_stage_refuses_it_too(taught, tmp_path):
    params = write_params(tmp_path / "params.yaml", {"rl.study.mismatch": {"kind": "bfloat16_weights"}})
    with pytest.raises(UserError, match=r"max_logprob_gap 0.0001 would stop a round .* set it to null"):
        main(rl_flags(taught, params, tmp_path))


def test_a_sampler_that_is_stale_on_purpose_is_measured_and_masked(taught, tmp_path):
    masking = {"kind": "trust_region_masking", "max_threshold": 0.02, "mean_threshold": None, "divergence": "sampled"}
    changes = {
        "rl.study.mismatch": {"kind": "stale_weights", "versions": 2},
        "rl.weight_sync_check.max_logprob_gap": None,
        "rl.rollout_correction": masking,
        "rl.proximal": "rollout",
        "rl_rounds.rl_1.steps": 5,
    }
    main(rl_flags(taught, write_params(tmp_path / "params.yaml", changes), tmp_path))
    rows = curve(tmp_path)
    assert rows[0]["logprob_gap/token_max"] < 1e-4 < rows[4]["logprob_gap/token_max"]  # two versions behind
    assert min(row["trust_region/acceptance_rate"] for row in rows) < 1
    assert max(row["mask/trust_region_max_fraction"] for row in rows) > 0
