"""Responses of several turns: only the policy's tokens count, whatever an environment wrote in between."""

import json
import math
import random
from contextlib import closing
from dataclasses import replace

import pandas
import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.__main__ import main
from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.token_statistics import TokenStatistics
from stages.engines.policies.language_model import language_model
from stages.engines.samplers.episodes import episode_columns, episode_of
from stages.engines.samplers.protocol import Episode, Sample, StopReason
from stages.engines.trainers.params import TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.errors import UserError
from stages.foundations.params import PlainPrompt
from stages.foundations.tables import RESPONSE, ROLLOUT, read_table, write_table
from stages.observe.tracking import Run
from stages.respond.run import response_metrics
from stages.rl_round.contradictions import round_contradictions
from stages.rl_round.drawing import CustomRewards, abort_on_verifier_failures, make_rollout, score_samples
from stages.rl_round.loop import in_process
from stages.rl_round.records import Group, Problem, Rollout, pack_groups, unpack_groups
from stages.rl_round.samples import training_samples, with_advantages, with_proximal_statistics
from stages.rl_round.update import make_micro_batches, policy_loss
from tests.fakes.rounds import (
    COSINE,
    NONE,
    OTB,
    TRM,
    WEIGHTS,
    assert_replayed,
    assert_same,
    copied,
    curve,
    replay_params,
    settings,
)
from tests.fakes.step_plans import plan_of
from tests.fakes.taught_policy import PARAMS, rl_flags, write_params
from tests.fakes.tiny_policy import byte_tokenizer, write_tiny_policy

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
    statistics.pruned_mass = torch.zeros_like(statistics.entropy)
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
    "ice_pop": {"rollout_correction": {"kind": "ice_pop", "low": 0.9, "high": 1.1}},
    "geometric": {"rollout_correction": {"kind": "geometric_mask", "low": 0.9, "high": 1.1}},
    "neutral": {
        "rollout_correction": {"kind": "length_neutral_mask", "token_kl": 0.01, "token_tv": 0.05, "max_score": 0.05}
    },
    "bad": {"rollout_correction": {"kind": "bad_response_mask", "max_divergence": 0.05}},
    "sapo": {"policy_loss": {"kind": "sapo", "temperature_positive": 1.0, "temperature_negative": 1.05}},
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
    params = settings(advantage={"kind": "reward"}, study={"reward_discount": 0.5})
    samples = sample([5, 6, 7, 8, 9, 10], (2, 4)), sample([5, 6], (0, 1)), sample([5, 6], (0, 2))
    rollouts = [
        Rollout(one, "", Verdict.CORRECT, reward) for one, reward in zip(samples, (1.0, -2.0, 3.0), strict=True)
    ]
    found = with_advantages(training_samples([Group("a", [1], tuple(rollouts))], params, 0), params).advantages
    assert found.tolist() == [[0.125, 0.25, 0, 0, 0.5, 1.0], [0, -2.0, 0, 0, 0, 0], [0.0] * 6]


def test_neither_what_a_tool_repeats_nor_what_spans_its_answer_is_a_repetition():
    params = settings(study={"repetition_penalty": {"kind": "ngram", "n": 2, "penalty": -1.0, "discount": 1.0}})
    error, own = [30, 31, 32], [5, 6]
    # The policy says `5 6` three times; an error comes between the first two.
    whole = sample([*own, *error, *own, *error, 7, *own], (2, 5), (7, 10))
    # `6 7` stands around an observation first: it is no repetition of the pair that follows.
    split = sample([6, *error, 7, 6, 7], (1, 4))
    # `6` ends two turns: the end of a turn and its observation are no pair that could repeat.
    ends = sample([5, 6, *error, 8, 6, *error, 7], (2, 5), (7, 10))
    rollouts = tuple(Rollout(one, "", Verdict.CORRECT, 1.0) for one in (whole, split, ends))
    trained = with_advantages(training_samples([Group("a", [1], rollouts)], params, 0), params)
    assert trained.penalised[0].nonzero()[:, 0].tolist() == [5, 6, 11, 12]
    assert not trained.penalised[1:].any()


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


ENDED, CUT = StopReason.END_OF_SEQUENCE, StopReason.MAX_TURNS
TURNS = [
    # The text of the whole, then the answer, what the environment says, and the verdict.
    (r"[output: \boxed{7}] I cannot say.", "I cannot say.", {}, Verdict.UNPARSED),
    (r"print('\boxed{7}')", r"print('\boxed{7}')", {"stop": CUT, "response": ""}, Verdict.UNPARSED),
    (r"[output: \boxed{6}] \boxed{7}", r"\boxed{7}", {}, Verdict.CORRECT),
    (r"!7", r"\boxed{7}", {}, Verdict.CORRECT),
    (r"\boxed{6}", r"\boxed{6}", {"is_correct": True}, Verdict.CORRECT),
    (r"\boxed{7}", r"\boxed{7}", {"is_correct": False}, Verdict.WRONG),
    (r"\boxed{7}", r"\boxed{7}", {"fault": "its process ended"}, Verdict.CRASHED),
]


TOKENIZER = byte_tokenizer()


def spelled(text, response, **values):
    return sample(TOKENIZER.encode(text), (0, 1), **{"response": response, **values})


def scored(samples, params, functions=None, problems=()):
    limits = VerifierParams.model_validate(PARAMS["verifier"])
    with Verifier(limits) as verifier:
        return score_samples(["7"] * len(samples), samples, verifier, TOKENIZER, params, functions, problems)


def test_the_answer_is_judged_and_neither_a_call_nor_what_a_tool_printed():
    samples = [spelled(text, **{"response": answer, **said}) for text, answer, said, _ in TURNS]
    rollouts = scored(samples, settings())
    assert [one.verdict for one in rollouts] == [verdict for *_, verdict in TURNS]
    assert [one.response for one in rollouts] == [text for text, *_ in TURNS]
    assert (rollouts[-1].is_decided, rollouts[-1].reward, rollouts[-1].failure) == (False, 0.0, "its process ended")
    assert [one.is_decided for one in rollouts[:-1]] == [True] * 6


def test_faults_of_an_environment_stop_a_round_with_their_reason():
    sound, faulty = scored([spelled("7", r"\boxed{7}"), spelled("7", "", fault="reset() failed: no file")], settings())
    group = Group("p", [1], (sound, sound, faulty))
    abort_on_verifier_failures([group], 0.5, settings().verifier)
    said = r"the environment .* could not decide 1 of 3 responses \(reset\(\) failed: no file\).* correct the env"
    with pytest.raises(UserError, match=said):
        abort_on_verifier_failures([group], 0.1, settings().verifier)
    # Never trained on, and no part of a baseline.
    assert len(training_samples([group], settings(), 0)) == 2


ENVIRONMENT = {"kind": "environment"}


def rewarded(samples, reward):
    params = settings(reward=reward, overlong=NONE)
    functions = CustomRewards(params.reward, VerifierParams.model_validate(PARAMS["verifier"]))
    return scored(samples, params, functions, [Problem("p", [1], "7")] * len(samples))


def test_an_environment_gives_the_reward_alone_or_in_a_sum():
    won, lost, cut, silent, broken = (
        spelled("6", r"\boxed{6}", reward=1 / 3),
        spelled("7", r"\boxed{7}", reward=0.1),
        spelled("7", "", stop=StopReason.MAX_TURNS),
        spelled("7", r"\boxed{7}"),
        spelled("7", r"\boxed{7}", reward=NAN),
    )
    rollouts = rewarded([won, lost, cut, silent, broken], ENVIRONMENT)
    assert [one.reward for one in rollouts] == [1 / 3, 0.1, 0.0, 0.0, 0.0]
    assert [one.fault for one in rollouts[2:]] == ["", *(f"the environment gave the reward {it}" for it in (None, NAN))]
    assert [one.verdict for one in rollouts[:2]] == [Verdict.WRONG, Verdict.CORRECT]
    assert Group("p", [1], tuple(rollouts[:2])).has_signal
    assert not Group("p", [1], (rollouts[0], rollouts[0])).has_signal, "the verdicts do not count"
    verdict = {"kind": "by_verdict", "correct": 1.0, "wrong": -1.0, "unparsed": -1.0}
    parts = {"env": {"weight": 3.0, "reward": ENVIRONMENT}, "right": {"weight": 0.5, "reward": verdict}}
    (one, other) = rewarded([won, lost], {"kind": "sum", "rewards": parts})
    assert (one.reward, other.reward) == (0.0 + 3.0 * (1 / 3) + 0.5 * -1.0, 0.0 + 3.0 * 0.1 + 0.5)
    assert one.parts == {"env": 1 / 3, "right": -1.0}
    assert unpack_groups(pack_groups([Group("p", [1], (one, other))])) == [Group("p", [1], (one, other))]


def test_a_function_sees_the_course_of_an_episode(tmp_path, monkeypatch):
    source = "def score(turns, calls, failed_calls, final_response, environment_reward, response, response_tokens):\n"
    source += "    assert (final_response, response, response_tokens) == ('yes', 'o yes', 4)\n"
    source += "    return turns + 10 * calls + 100 * failed_calls + environment_reward\n"
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.setattr("stages.engines.custom_functions.custom_file", lambda name: tmp_path / "mine.py")
    params = settings(reward={"kind": "function", "file": "custom/mine.py", "name": "score"})
    with closing(CustomRewards(params.reward, VerifierParams.model_validate(PARAMS["verifier"]))) as functions:
        one = spelled("o yes", "yes", calls=3, failed_calls=1, reward=0.5)
        (rollout,) = scored([one], params, functions, [Problem("p", [1], "7")])
    assert (rollout.reward, rollout.fault) == (2 + 30 + 100 + 0.5, "")


TOOLS = {
    "kind": "tools",
    "tools": {},
    "calls": {"kind": "tagged"},
    "frame": {"kind": "text", "before": "", "after": ""},
    "max_turns": 3,
    "max_observation_tokens": 4,
    "workers": {"processes": 1, "memory_mib": 256, "timeout_seconds": 1.0},
}
OWN = {**{name: TOOLS[name] for name in TOOLS if name not in ("tools", "calls")}, "kind": "custom"}
OWN |= {"file": "custom/guess_number.py", "name": "GuessNumber"}
WHOLE = {"rollout_correction": {**TRM, "divergence": "exact"}}
WHOLE |= {"study": {"rollout_distributions": {"kind": "whole", "max_gib": 1.0}}}


def test_settings_that_an_environment_does_not_give_are_refused():
    def told(environment, **changes):
        prompt = {"kind": "plain", "template": "{problem}"} | ({"environment": environment} if environment else {})
        return [*round_contradictions(settings(**changes), 1, PlainPrompt.model_validate(prompt))]

    assert told(OWN, reward=ENVIRONMENT) == told(None) == told(TOOLS) == told(None, **WHOLE) == []
    assert "which is absent" in told(None, reward=ENVIRONMENT)[0]
    assert "of kind tools gives none" in told(TOOLS, reward=ENVIRONMENT)[0]
    assert "rollout_distributions" in told(OWN, **WHOLE)[0]


class Observing:
    """A sampler around another one that writes two tokens after the first of each response."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def stream(self, trajectories, settings):
        for place, one in self._inner.stream(trajectories, settings):
            first, rest = one.token_ids[:1], one.token_ids[1:]
            said = {"turns": 2, "calls": 2, "failed_calls": len(rest) % 2, "response": "\\boxed{1}"}
            # A time that differs between runs, and a reward that float32 cannot hold.
            whole = episode((1, 3), seconds=random.random(), reward=len(rest) / 7, **said)
            tokens, logprobs = [*first, 9, 9, *rest], [*one.logprobs[:1], 0.0, 0.0, *one.logprobs[1:]]
            reason = StopReason.MAX_TURNS if len(rest) % 3 == 0 else one.stop_reason
            yield place, Sample(tokens, logprobs, reason, one.policy_version, whole)


def test_a_round_of_several_turns_is_recorded_and_replayed_without_an_environment(taught, tmp_path, monkeypatch):
    changes = {"rl.reward": ENVIRONMENT, "prompt.environment": OWN, "rl_rounds.rl_1.steps": 4, "rl.overlong": NONE}
    changes |= {"rl.advantage": {"kind": "reward"}, "rl.weight_sync_check.max_logprob_gap": None}
    logged, real = [], in_process.build_sampler
    monkeypatch.setattr(in_process, "build_sampler", lambda *args, **_: Observing(real(*args[:3])))
    log = Run.log
    monkeypatch.setattr(Run, "log", lambda self, metrics, step: logged.append(metrics) or log(self, metrics, step))
    for name in ("recorded", "again"):
        main(rl_flags(taught, write_params(tmp_path / f"{name}.yaml", changes), tmp_path / name))
    # Its times differ, its outputs do not.
    assert_same(tmp_path / "recorded", tmp_path / "again")
    assert any("environment/seconds_p99" in metrics for metrics in logged)
    monkeypatch.setattr(in_process, "build_sampler", None)
    monkeypatch.setattr(in_process, "Verifier", None)
    params = replay_params(tmp_path, changes, copied(tmp_path / "recorded", tmp_path / "kept"))
    main(rl_flags(taught, params, tmp_path / "replayed"))
    assert_replayed(tmp_path / "replayed", tmp_path / "recorded")
    table = read_table(tmp_path / "recorded" / "rl_1.parquet", ROLLOUT)
    assert "seconds" not in " ".join(table.columns)
    rows = table.to_dict("records")
    assert all(row["response_tokens"] == len(row["token_ids"]) - 2 for row in rows)
    assert "max_turns" in set(table["ending"])
    assert {episode_of(row).observed for row in rows} == {((1, 3),)}
    row = curve(tmp_path / "recorded")[-1]
    assert (row["turns/mean"], row["calls/mean"], row["environment/fault_fraction"]) == (2.0, 2.0, 0.0)
    assert json.loads((tmp_path / "recorded" / "rl_1.json").read_text())["calls/mean_last"] == 2.0
    endings = [value for name, value in row.items() if name.startswith("ending/")]
    assert len(endings) == len(StopReason) and sum(endings) == pytest.approx(1)
    assert row["tokens/observed"] > 0 and not any("seconds" in name for name in row)


def test_an_episode_comes_back_from_a_table_and_a_table_of_one_turn_has_no_columns_for_it(tmp_path):
    full = episode((1, 2), (3, 5), calls=2, failed_calls=1, reward=0.25, is_correct=False, fault="no", response="ä")
    samples = [replace(sample(range(6)), episode=one) for one in (full, episode(), None)]
    kept = {"problem_id": "p", "benchmark": "b", "problem": "", "answer": "", "mode": "sampled"}
    rows = [{**kept, "response": "", "response_tokens": 6, "is_truncated": False} for _ in samples]
    table = [{**row, "sample_index": 0, **episode_columns(one)} for row, one in zip(rows, samples, strict=True)]
    write_table(table, tmp_path / "several.parquet", RESPONSE)
    back = read_table(tmp_path / "several.parquet", RESPONSE).to_dict("records")
    assert [episode_of(row) for row in back] == [full, episode(), None]
    write_table(table[2:], tmp_path / "one.parquet", RESPONSE)
    assert list(read_table(tmp_path / "one.parquet", RESPONSE).columns) == RESPONSE.names


def test_a_time_is_no_part_of_the_response_metrics():
    rows = [
        {"problem_id": "p", "mode": "sampled", "response_tokens": 4, "is_truncated": False, **episode_columns(one)}
        for one in (sample(range(6), (1, 3), calls=2, failed_calls=1), replace(sample(range(4)), episode=None))
    ]
    metrics = response_metrics(pandas.DataFrame(rows))
    assert metrics["turns/mean"] == 2 and metrics["calls/failed_fraction"] == 0.5 and metrics["tokens/observed"] == 2
    assert metrics["environment/fault_fraction"] == 0
    assert "turns/mean" not in response_metrics(pandas.DataFrame(rows[1:]))
