"""Rollouts in three steps: what decides a trajectory's random numbers, and that each step can be taken by itself."""

from contextlib import closing

import pytest

from stages.engines.policies.tokenizers import load_tokenizer
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.rl_round.drawing import (
    ProblemDraw,
    draw_groups,
    make_group,
    sampling_settings,
    score_samples,
    trajectories_of,
)
from stages.rl_round.params import RlParams
from stages.rl_round.records import Problem, pack_groups, unpack_groups
from tests.fakes.taught_policy import PARAMS
from tests.fakes.tiny_policy import write_tiny_policy

RL = RlParams.model_validate(PARAMS["rl"])
DRAWS = [ProblemDraw(Problem(name, prompt, "7"), 0) for name, prompt in (("a", [36, 80]), ("b", [81]))]


def test_identity_alone_decides_the_random_numbers():
    first = trajectories_of(DRAWS[0], 4, 0, "rl_1")
    assert len({one.seed for one in first}) == 4
    assert first[:2] == trajectories_of(DRAWS[0], 2, 0, "rl_1")  # a larger group begins with the smaller one
    others = [
        trajectories_of(DRAWS[1], 4, 0, "rl_1"),
        trajectories_of(ProblemDraw(DRAWS[0].problem, 1), 4, 0, "rl_1"),
        trajectories_of(DRAWS[0], 4, 0, "rl_2"),
        trajectories_of(DRAWS[0], 4, 1, "rl_1"),
    ]
    for other in others:
        assert not {one.seed for one in first} & {one.seed for one in other}


@pytest.fixture
def sampler(tmp_path):
    folder = write_tiny_policy(tmp_path / "policy", initializer_range=0.2)
    with closing(TorchSampler.from_folder(TorchSamplerParams.model_validate(PARAMS["sampler"]), folder)) as one:
        yield one


def test_steps_taken_one_by_one_give_the_groups_of_all_three_together(sampler, tmp_path):
    """As an asynchronous loop takes them: each response is scored when it ends, in whatever order."""
    tokenizer = load_tokenizer(tmp_path / "policy")
    with Verifier(VerifierParams.model_validate(PARAMS["verifier"])) as verifier:
        together = draw_groups(DRAWS, sampler, verifier, tokenizer, RL, 0, "rl_1")
        alone = []
        for draw in reversed(DRAWS):
            trajectories = trajectories_of(draw, RL.group_size, 0, "rl_1")
            rollouts = {
                index: score_samples(["7"], [sample], verifier, tokenizer, RL)[0]
                for index, sample in sampler.stream(trajectories, sampling_settings(RL))
            }
            alone.append(make_group(draw, [rollouts[index] for index in range(RL.group_size)]))
    for one, other in zip(together, reversed(alone), strict=True):
        assert one.problem_id == other.problem_id
        for rollout, twin in zip(one.rollouts, other.rollouts, strict=True):
            assert rollout.sample.token_ids == twin.sample.token_ids
            assert (rollout.verdict, rollout.reward) == (twin.verdict, twin.reward)
        assert unpack_groups(pack_groups([one])) == [one]
