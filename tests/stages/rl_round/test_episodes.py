"""Responses of several turns: only the policy's tokens count, whatever an environment wrote in between."""

import math
import random
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.token_statistics import TokenStatistics
from stages.engines.policies.language_model import language_model
from stages.engines.samplers.protocol import Episode, Sample, StopReason
from stages.engines.trainers.params import TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.rl_round.drawing import make_rollout
from stages.rl_round.losses import policy_loss
from stages.rl_round.records import Group, Rollout
from stages.rl_round.samples import make_micro_batches, training_samples
from stages.rl_round.update import outcome_returns, with_advantages, with_proximal_statistics
from tests.fakes.rounds import COSINE, NONE, OTB, TRM, WEIGHTS, settings
from tests.fakes.step_plans import plan_of
from tests.fakes.taught_policy import PARAMS
from tests.fakes.tiny_policy import write_tiny_policy

NAN = math.nan


def episode(*observed, **values):
    return Episode(observed, values.pop("turns", len(observed) + 1), values.pop("response", ""), **values)


def sample(tokens, *observed, logprobs=None, stop=StopReason.END_OF_SEQUENCE, **values):
    return Sample(list(tokens), logprobs or [-1.0] * len(tokens), stop, 0, episode(*observed, **values))


def random_pair(rng):
    """Returns two groups of the same policy's tokens: in turns with observations in between, and by themselves."""
    in_turns, alone = [], []
    for number in range(2):
        ours, theirs = [], []
        for _ in range(4):
            token_ids, logprobs, spans = [], [], []
            own = [(rng.randrange(3, 20), -rng.random()) for _ in range(rng.randrange(1, 9))]
            for place, (token, logprob) in enumerate(own):
                if place and rng.random() < 0.4:
                    start = len(token_ids)
                    token_ids += [rng.randrange(3, 20) for _ in range(rng.randrange(1, 5))]
                    spans.append((start, len(token_ids)))
                    # Never arithmetic: a value that would poison every sum.
                    logprobs += [NAN] * (spans[-1][1] - start)
                token_ids.append(token)
                logprobs.append(logprob)
            stop = rng.choice([StopReason.END_OF_SEQUENCE, StopReason.MAX_TOKENS])
            verdict, reward = rng.choice([(Verdict.CORRECT, 1.0), (Verdict.WRONG, -1.0)])
            whole = Sample(token_ids, logprobs, stop, rng.randrange(2), episode(*spans))
            bare = Sample([one for one, _ in own], [one for _, one in own], stop, whole.policy_version)
            ours.append(Rollout(whole, "", verdict, reward))
            theirs.append(Rollout(bare, "", verdict, reward))
        in_turns.append(Group(f"p{number}", [1, 2], tuple(ours)))
        alone.append(Group(f"p{number}", [1, 2], tuple(theirs)))
    return in_turns, alone


def given(samples, values):
    """Returns the values at the policy's tokens, in order, as a tensor of the samples' layout."""
    mask = samples.response_mask.bool()
    return torch.zeros(mask.shape).masked_scatter_(mask, values)


def loss_of(groups, params, values):
    """Returns advantages, loss, gradient and diagnostics, the first and third at the policy's tokens in order."""
    samples = training_samples(groups, params, 1)
    mask = samples.response_mask.bool()
    samples = replace(
        samples,
        proximal_logprobs=given(samples, values["proximal"]),
        sum_squared_probs=given(samples, values["squares"]),
        reference_logprobs=given(samples, values["reference"]),
    )
    samples = with_advantages(samples, params)
    (batch,) = make_micro_batches(samples, [range(len(samples))], params)
    assert torch.equal(batch.response_mask, samples.response_mask)
    logprobs = given(samples, values["policy"]).requires_grad_()
    statistics = TokenStatistics(logprobs, given(samples, values["entropy"]), given(samples, values["squares"]))
    statistics.outside = given(samples, values["outside"]).bool()
    loss, diagnostics = policy_loss(samples, params)(statistics, batch)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert not gradient[~mask].any()
    assert not samples.advantages[~mask].any()
    shown = {name: float(value) for name, value in diagnostics.items()}
    return samples.advantages[mask], loss.detach(), gradient[mask], shown


SAFE_SET = {"kind": "safe_set", "log_threshold": -13.0}
CHOICES = {
    "plain": {},
    "discounted": {"study": {"reward_discount": 0.5}, "overlong_filtering": True},
    "opo": {"advantage": {"kind": "length_weighted"}, "aggregation": "sequence_mean_token_mean"},
    "gspo": {"policy_loss": {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.2}, "aggregation": "constant"},
    "otb": {"advantage": {**OTB, "is_importance_weighted": True}, "rollout_correction": WEIGHTS},
    "return": {"advantage": {**OTB, "lone_tail": "return"}, "study": {"reward_discount": 0.9}},
    "sequence": {"rollout_correction": {**WEIGHTS, "level": "sequence"}, "policy_loss": {"kind": "reinforce"}},
    "region": {"rollout_correction": {**TRM, "max_threshold": 0.1, "mean_threshold": 0.05}},
    "kl": {"reference_kl": {"kind": "k3", "coefficient": 0.1}, "aggregation": "sequence_mean_token_sum"},
    "drop_token": {"study": {"vocabulary_pruning": {**SAFE_SET, "outside": "drop_token"}}},
    "drop_response": {"study": {"vocabulary_pruning": {**SAFE_SET, "outside": "drop_response"}}},
    "cispo": {"policy_loss": {"kind": "cispo", "clip_low": 0.1, "clip_high": 0.2}, "advantage": {"kind": "reward"}},
}


@pytest.mark.parametrize("changes", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("seed", range(3))
def test_turns_train_to_the_loss_of_the_policys_tokens_alone(changes, seed):
    rng, torch_rng = random.Random(seed), torch.Generator().manual_seed(seed)
    params = settings(**changes)
    in_turns, alone = random_pair(rng)
    count = sum(one.sample.policy_tokens for group in in_turns for one in group.rollouts)
    assert count == sum(len(one.sample.token_ids) for group in alone for one in group.rollouts)
    drawn = torch.cat([torch.tensor(one.sample.logprobs) for group in alone for one in group.rollouts])
    noise = {name: torch.rand(count, generator=torch_rng) for name in ("proximal", "policy", "reference", "squares")}
    values = {name: drawn - 0.3 * (value - 0.5) for name, value in noise.items()}
    values |= {"squares": noise["squares"], "entropy": noise["reference"], "outside": noise["policy"] < 0.1}
    values["outside"] = values["outside"].float()
    ours, theirs = loss_of(in_turns, params, values), loss_of(alone, params, values)
    torch.testing.assert_close(ours[:3], theirs[:3])
    assert ours[3] == pytest.approx(theirs[3], rel=1e-5, abs=1e-7)
    assert ours[2].any()


def test_statistics_come_from_the_whole_response_and_stand_at_the_policys_tokens(tmp_path):
    write_tiny_policy(tmp_path / "policy")
    params, trainer_params = settings(advantage=OTB), TorchTrainerParams.model_validate(PARAMS["trainer"])
    model = language_model(tmp_path / "policy", trainer_params)
    trainer = TorchTrainer(trainer_params, params.optimizer, 1.0, model)
    one = sample([5, 6, 7, 8, 9, 10], (1, 3), (4, 5), logprobs=[-1.0, NAN, NAN, -2.0, NAN, -3.0])
    other = sample([11, 12], (1, 2))
    group = Group("a", [3, 4], tuple(Rollout(each, "", Verdict.CORRECT, 1.0) for each in (one, other)))
    samples = training_samples([group], params, 0)
    assert samples.response_mask.tolist() == [[1, 0, 0, 1, 0, 1], [1, 0, 0, 0, 0, 0]]
    assert samples.rollout_logprobs.tolist() == [[-1.0, 0, 0, -2.0, 0, -3.0], [-1.0, 0, 0, 0, 0, 0]]
    assert samples.response_tokens == [3, 1]
    samples = with_proximal_statistics(samples, plan_of(samples, params, trainer), params, trainer)
    policy = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype=torch.float32)
    for row, (each, places) in enumerate(((one, (0, 3, 5)), (other, (0,)))):
        ids = torch.tensor([[3, 4, *each.token_ids]])
        with torch.no_grad():
            # An observation is read by the tokens after it.
            whole = policy(ids).logits[0].log_softmax(-1)
        for place in range(6):
            told = samples.proximal_logprobs[row, place].item()
            expected = whole[1 + place, each.token_ids[place]].item() if place in places else 0.0
            assert told == pytest.approx(expected, abs=1e-5)


def test_a_discount_counts_the_policys_tokens_and_begins_at_its_last_one():
    params = settings(study={"reward_discount": 0.5})
    mask = torch.tensor([[1.0, 1, 0, 0, 1, 1, 0], [0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0]])
    returns = outcome_returns(torch.tensor([1.0, -2.0, 3.0]), mask, params)
    assert returns.tolist() == [[0.125, 0.25, 0, 0, 0.5, 1.0, 0], [0, -2.0, 0, 0, 0, 0, 0], [0.0] * 7]


def test_neither_what_a_tool_repeats_nor_what_spans_its_answer_is_a_repetition():
    params = settings(study={"repetition_penalty": {"kind": "ngram", "n": 2, "penalty": -1.0, "discount": 1.0}})
    error, own = [30, 31, 32], [5, 6]
    # The policy says `5 6` three times; an error comes between the first two.
    whole = sample([*own, *error, *own, *error, 7, *own], (2, 5), (7, 10))
    # `6 7` stands around an observation first: it is no repetition of the pair that follows.
    split = sample([6, *error, 7, 6, 7], (1, 4))
    rollouts = tuple(Rollout(one, "", Verdict.CORRECT, 1.0) for one in (whole, split))
    trained = with_advantages(training_samples([Group("a", [1], rollouts)], params, 0), params)
    assert trained.penalised[0].nonzero()[:, 0].tolist() == [5, 6, 11, 12]
    assert not trained.penalised[1].any()


def test_length_is_the_policys_and_the_limit_is_that_of_all_tokens():
    cosine = settings(reward={**COSINE, "r0_correct": 2, "rL_correct": 1, "exceeded": -9}, overlong=NONE)
    long = sample(range(3, 15), (1, 11))
    assert make_rollout(long, "", Verdict.CORRECT, cosine).reward == pytest.approx(
        1 + 0.5 * (1 + math.cos(math.pi * 2 / 12))
    )
    cut = replace(long, stop_reason=StopReason.MAX_TOKENS)
    assert make_rollout(cut, "", Verdict.CORRECT, cosine).reward == -9
    soft = settings(reward={"kind": "by_verdict", "correct": 1.0, "wrong": 0.0, "unparsed": 0.0})
    assert make_rollout(long, "", Verdict.CORRECT, soft).reward == 1.0
    assert make_rollout(cut, "", Verdict.CORRECT, soft).reward == 0.0
