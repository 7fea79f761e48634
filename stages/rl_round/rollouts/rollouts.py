"""Rollouts and their groups: drawn from the sampler, judged by the verifier, rewarded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.algorithms.length_rewards import cosine_length_reward, soft_overlong_punishment
from stages.engines.policies.policy_folders import decode_response
from stages.engines.samplers.protocol import Sampler, SamplingSettings
from stages.engines.samplers.samples import Sample, StopReason
from stages.engines.verifier.verifier import Verdict
from stages.rl_round.params.rewards import CosineReward, SoftOverlong, VerdictReward
from stages.rl_round.params.rl import RlParams
from stages.rl_round.rollouts.round_verifier import RoundVerifier


@dataclass(frozen=True)
class Problem:
    """A problem, ready to be sampled."""

    problem_id: str
    prompt: list[int]
    answer: str


@dataclass(frozen=True)
class Rollout:
    """One response with its verdict and reward."""

    sample: Sample
    response: str
    verdict: Verdict
    reward: float
    """0 where the verdict is no opinion about the response (timed out, crashed): such a rollout is never trained on."""

    @property
    def is_decided(self) -> bool:
        """False when the verifier failed: the response is then neither good nor bad."""
        return not self.verdict.is_failure


@dataclass(frozen=True)
class Group:
    """The rollouts of one problem, all drawn with one version of the policy."""

    problem_id: str
    prompt: list[int]
    policy_version: int
    rollouts: tuple[Rollout, ...]

    @property
    def has_signal(self) -> bool:
        """True when some decided rollouts are correct and some are not (DAPO filters on correctness, not reward)."""
        correct = sum(rollout.verdict is Verdict.CORRECT for rollout in self.rollouts)
        return 0 < correct < sum(rollout.is_decided for rollout in self.rollouts)


def draw_groups(
    problems: Sequence[Problem],
    sampler: Sampler,
    verifier: RoundVerifier,
    tokenizer,
    params: RlParams,
    seed: int,
) -> list[Group]:
    """One group per problem, judged and rewarded."""
    settings = SamplingSettings(
        params.temperature,
        params.top_p,
        params.top_k,
        params.max_response_tokens,
        params.log_threshold,
        params.keeps_distributions,
    )
    drawn = sampler.sample([problem.prompt for problem in problems], params.group_size, settings, seed)
    texts = [[decode_response(tokenizer, sample.token_ids) for sample in samples] for samples in drawn]
    pairs = [(problem.answer, text) for problem, group in zip(problems, texts, strict=True) for text in group]
    truncated = [sample.is_truncated for samples in drawn for sample in samples]
    judgements = verifier.judge(pairs, truncated=truncated, require_marker=True)
    verdicts = iter([judgement.verdict for judgement in judgements])
    groups = []
    for problem, samples, responses in zip(problems, drawn, texts, strict=True):
        rollouts = tuple(
            make_rollout(sample, response, next(verdicts), params)
            for sample, response in zip(samples, responses, strict=True)
        )
        groups.append(Group(problem.problem_id, problem.prompt, sampler.policy_version, rollouts))
    return groups


def make_rollout(sample: Sample, response: str, verdict: Verdict, params: RlParams) -> Rollout:
    """A rollout with the reward of its verdict and length."""
    if verdict.is_failure:
        return Rollout(sample, response, verdict, 0.0)
    return Rollout(sample, response, verdict, outcome_reward(verdict, len(sample.token_ids), params))


def outcome_reward(verdict: Verdict, tokens: int, params: RlParams) -> float:
    """Reward at the end of a decided response of `tokens` tokens, overlong punishment included."""
    limit = params.max_response_tokens
    match params.reward:
        case VerdictReward():
            reward = verdict_reward(params.reward, verdict)
        case CosineReward() as shape:
            reward = cosine_length_reward(
                verdict is Verdict.CORRECT,
                tokens,
                limit,
                shape.r0_correct,
                shape.rL_correct,
                shape.r0_wrong,
                shape.rL_wrong,
                shape.exceeded,
            )
    if isinstance(params.overlong, SoftOverlong):
        reward += soft_overlong_punishment(tokens, limit, params.overlong.buffer_tokens)
    return reward


def verdict_reward(reward: VerdictReward, verdict: Verdict) -> float:
    """Reward of a decided verdict, whatever the length."""
    return {Verdict.CORRECT: reward.correct, Verdict.WRONG: reward.wrong, Verdict.UNPARSED: reward.unparsed}[
        verdict
    ]


def group_to_json(group: Group) -> dict:
    """The group as JSON can hold it, without distributions; floats keep every bit."""
    return {
        "problem_id": group.problem_id,
        "prompt": group.prompt,
        "policy_version": group.policy_version,
        "rollouts": [
            {
                "token_ids": rollout.sample.token_ids,
                "logprobs": rollout.sample.logprobs,
                "stop_reason": rollout.sample.stop_reason.value,
                "response": rollout.response,
                "verdict": rollout.verdict.value,
                "reward": rollout.reward,
            }
            for rollout in group.rollouts
        ],
    }


def group_from_json(stored: dict) -> Group:
    """The inverse of `group_to_json`."""
    rollouts = tuple(
        Rollout(
            Sample(row["token_ids"], row["logprobs"], StopReason(row["stop_reason"])),
            row["response"],
            Verdict(row["verdict"]),
            row["reward"],
        )
        for row in stored["rollouts"]
    )
    return Group(stored["problem_id"], stored["prompt"], stored["policy_version"], rollouts)
