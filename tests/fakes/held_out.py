"""Accuracy of a tiny policy's folder on the held-out problems, by hand."""

from __future__ import annotations

from pathlib import Path

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.policies.tokenizers import decode_response, encode_prompt, load_tokenizer
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.protocol import SamplingSettings, Trajectory, sample_trajectories
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.engines.verifier.verifier import Verifier
from stages.foundations.params import validate_section
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import PROBLEM, read_table
from stages.rl_round.stage import STAGE
from tests.fakes.taught_policy import PARAMS


def held_out_accuracy(taught: Path, policy: Path, seed: int, step: int) -> float:
    """Returns the accuracy over 8 problems times 4 responses, with the random numbers of that step of round rl_1."""
    problems = read_table(taught / "held_out.parquet", PROBLEM).to_dict("records")[:8]
    tokenizer = load_tokenizer(policy)
    sampler = TorchSampler.from_folder(TorchSamplerParams.model_validate(PARAMS["sampler"]), policy)
    drawn = [
        Trajectory(
            encode_prompt(tokenizer, _validated("prompt"), row["problem"]),
            derive_seed(seed, "rl_1", "evaluation", step, row["problem_id"], number, 0),
        )
        for row in problems
        for number in range(4)
    ]
    samples = sample_trajectories(sampler, drawn, SamplingSettings(1.0, 1.0, 0, 12, None))
    answers = [row["answer"] for row in problems for _ in range(4)]
    responses = [decode_response(tokenizer, sample.token_ids) for sample in samples]
    with Verifier(_validated("verifier")) as verifier:
        judged = verifier.judge(
            list(zip(answers, responses, strict=True)), [one.is_truncated for one in samples], require_marker=True
        )
    return sum(one.verdict is Verdict.CORRECT for one in judged) / 32


def _validated(section: str):
    return validate_section(PARAMS[section], section, STAGE.sections[section], "params.yaml")
