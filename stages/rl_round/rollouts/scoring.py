"""The second of a rollout's three steps: its response is judged and rewarded."""

from __future__ import annotations

from collections.abc import Sequence

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.length_rewards import cosine_length_reward, soft_overlong_punishment
from stages.engines.policies.tokenizers import decode_response
from stages.engines.samplers.samples import Sample
from stages.rl_round.params.rewards import CosineReward, SoftOverlong, VerdictReward
from stages.rl_round.params.rl import RlParams
from stages.rl_round.rollouts.records import Rollout
from stages.rl_round.rollouts.round_verifier import RoundVerifier


def score_samples(
    answers: Sequence[str], samples: Sequence[Sample], verifier: RoundVerifier, tokenizer, params: RlParams
) -> list[Rollout]:
    """One rollout for each sample, in order; `answers` are the gold answers of their problems."""
    responses = [decode_response(tokenizer, sample.token_ids) for sample in samples]
    judgements = verifier.judge(
        list(zip(answers, responses, strict=True)),
        truncated=[sample.is_truncated for sample in samples],
        require_marker=True,
    )
    return [
        make_rollout(sample, response, judgement.verdict, params)
        for sample, response, judgement in zip(samples, responses, judgements, strict=True)
    ]


def make_rollout(sample: Sample, response: str, verdict: Verdict, params: RlParams) -> Rollout:
    """A rollout with the reward of its verdict and length."""
    reward = 0.0 if verdict.is_failure else outcome_reward(verdict, len(sample.token_ids), params)
    return Rollout(sample, response, verdict, reward)


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
    """Reward of a decided verdict, whatever the length; a response that exhausted its limits is as one unparsed."""
    rewards = {Verdict.CORRECT: reward.correct, Verdict.WRONG: reward.wrong}
    return rewards.get(verdict, reward.unparsed)
