"""Groups as bytes: the transfer changes nothing, and the data are small."""

import random
from dataclasses import replace

import pytest
import torch

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import Episode, FullSample, Sample, StopReason
from stages.rl_round.records import Group, Rollout, pack_groups, unpack_groups

QWEN_VOCABULARY = 151_936


REST, RIGHT = (StopReason.END_OF_SEQUENCE, 3), (Verdict.CORRECT, 1.0)


def float32(value: float) -> float:
    return float(torch.tensor(value))


def rollout(token_ids, stop=StopReason.END_OF_SEQUENCE, verdict=Verdict.CORRECT, reward=1 / 3):
    logprobs = [float32(-1 / (1 + token)) for token in token_ids]
    return Rollout(Sample(token_ids, logprobs, stop, 3), f"text {token_ids}", verdict, reward)


GROUPS = [
    Group("a", [3, 70_000], (rollout([5, 151_000, 0]), rollout([], StopReason.MAX_TOKENS)), draw=2),
    Group(
        "b",
        [1],
        (Rollout(Sample([7], [-1 / 3], *REST), "", *RIGHT), rollout([9] * 4, verdict=Verdict.TIMED_OUT, reward=0.0)),
    ),
]


def test_groups_come_back_as_they_were():
    assert unpack_groups(pack_groups(GROUPS)) == GROUPS
    assert unpack_groups(pack_groups([])) == []
    full = Episode(((1, 2), (3, 5)), 3, "ä", 2, 1, 0.1, 1 / 3, False, "no")
    some, bare = (replace(rollout([5] * 6).sample, episode=one) for one in (full, Episode((), 1, "")))
    several = [Group("a", [3], (Rollout(some, "", Verdict.CRASHED, 0.0), Rollout(bare, "", *RIGHT), rollout([7])))]
    assert unpack_groups(pack_groups(several)) == several
    (unheld, *_) = unpack_groups(pack_groups(several, [False] * 3))[0].rollouts
    assert (unheld.sample.policy_tokens, unheld.sample.episode) == (3, full)
    stopped = [Group("c", [1], (rollout([4], StopReason.STOP_STRING),))]
    assert unpack_groups(pack_groups(stopped)) == stopped


def test_of_what_is_not_held_only_lengths_and_rewards_are_known():
    known = unpack_groups(pack_groups(GROUPS, [False, False, False, True], with_texts=False))
    (absent, empty), (_, held) = (group.rollouts for group in known)
    assert (len(absent.sample.token_ids), absent.reward, absent.sample.policy_version) == (3, 1 / 3, 3)
    assert empty.sample.is_truncated and not held.is_decided
    assert held.sample == GROUPS[1].rollouts[1].sample and held.response == ""
    assert absent.sample.token_ids.strides == (0,), "it takes no memory"


def test_distributions_travel_with_what_is_held():
    rows = torch.randn(3, 4).log_softmax(-1)
    full = FullSample([1, 2, 3], [-0.5, -1.0, -2.0], StopReason.END_OF_SEQUENCE, 0, distributions=rows)
    groups = [Group("a", [3], (Rollout(full, "", Verdict.WRONG, 0.0), rollout([7])))]
    (found, plain) = unpack_groups(pack_groups(groups))[0].rollouts
    assert torch.equal(found.sample.distributions, rows)
    assert type(plain.sample) is Sample


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_a_token_takes_at_most_6_bytes(temperature):
    """Ids are distributed as in a language (Zipf's law), log-probs as in a policy, over the vocabulary of Qwen2.5."""
    generator = random.Random(0)
    ids = [int(QWEN_VOCABULARY ** generator.random()) for _ in range(20_000)]
    logprobs = [-(10.0 ** generator.gauss(-1.5, 1.5 / temperature)) for _ in ids]
    packed = pack_groups([Group("a", [3], (Rollout(Sample(ids, list(map(float32, logprobs)), *REST), "", *RIGHT),))])
    assert len(packed) <= 6 * len(ids)
