"""A round with a user's function as reward: its rewards, its failures, the signal of a group, and resuming."""

import json
from contextlib import nullcontext

import pytest
from mlflow.exceptions import MlflowException
from pydantic import TypeAdapter

from stages.__main__ import main
from stages.algorithms.answers.verdicts import Verdict
from stages.engines.custom_functions import FunctionValue
from stages.engines.samplers.protocol import Sample, StopReason
from stages.foundations.errors import UserError
from stages.foundations.params import CUSTOM
from stages.foundations.tables import ROLLOUT, read_table
from stages.rl_round.asynchronous.journal import Finished, record_from_json, record_to_json
from stages.rl_round.drawing import make_rollout, recorded_rollout
from stages.rl_round.methods import RewardParams
from stages.rl_round.records import Group, pack_groups, unpack_groups
from tests.fakes.rounds import (
    NONE,
    assert_replayed,
    assert_same,
    copied,
    curve,
    kill_after_three_steps,
    replay_params,
    settings,
)
from tests.fakes.taught_policy import rl_flags, write_params

VERDICT = {"kind": "by_verdict", "correct": 1.0, "wrong": -1.0, "unparsed": -1.0}
SOFT = {"kind": "soft_punishment", "buffer_tokens": 2}
FUNCTION = {"kind": "function", "file": "custom/mine.py", "name": "score"}
HELD_OUT = {"every_steps": 2, "problems": 6, "samples": 2, "temperature": 1.0, "keep": "last", "patience": None}
SOURCE = """
def score(problem, response, answer, verdict, response_tokens, solution, scale=1.0):
    if "2" in response:
        raise ValueError("no opinion about twos")
    assert problem and answer
    return {"right": scale * (verdict == "correct"), "digits": sum(one.isdigit() for one in response) / 10}
"""


@pytest.fixture
def custom(tmp_path, monkeypatch):
    """Makes the folder custom/ of a project, with a reward."""
    folder = tmp_path / "project" / CUSTOM
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(SOURCE)
    monkeypatch.setattr("stages.engines.custom_functions.custom_file", lambda name: folder.parent / name)
    return folder


def sample(tokens=4):
    return Sample([5] * tokens, [-1.0] * tokens, StopReason.END_OF_SEQUENCE, 0)


def reward(section, verdict=Verdict.CORRECT, tokens=4, values=None, **changes):
    params = settings(reward=section, **{"overlong": NONE, **changes})
    return make_rollout(sample(tokens), "", verdict, params, values or {})


def test_parts_are_weighted_and_the_length_still_costs():
    values = {"": FunctionValue(5.0, {"right": 2.0, "style": 3.0})}
    weighted = {**FUNCTION, "weights": {"style": 0.5}}
    assert reward(weighted, values=values).reward == 2.0 + 0.5 * 3.0
    assert reward(weighted, values=values).parts == {"right": 2.0, "style": 3.0}
    assert reward(FUNCTION, values={"": FunctionValue(0.25)}).reward == 0.25
    limit = settings().max_response_tokens
    assert reward(FUNCTION, tokens=limit, values={"": FunctionValue(0.25)}, overlong=SOFT).reward == 0.25 - 1


def test_several_rewards_are_added_with_their_weights():
    parts = {
        "right": {"weight": 2.0, "reward": VERDICT},
        "style": {"weight": 0.5, "reward": FUNCTION},
        "tone": {"weight": -1.0, "reward": FUNCTION},
    }
    values = {"style": FunctionValue(6.0, {"a": 2.0, "b": 4.0}), "tone": FunctionValue(0.5)}
    made = reward({"kind": "sum", "rewards": parts}, Verdict.WRONG, values=values)
    assert made.reward == 2.0 * -1.0 + 0.5 * 6.0 - 1.0 * 0.5
    assert made.parts == {"right": -1.0, "style": 6.0, "style.a": 2.0, "style.b": 4.0, "tone": 0.5}


def test_a_fault_or_an_undecided_verdict_is_never_trained_on():
    made = reward(FUNCTION, values={"": FunctionValue(fault="ValueError: no")})
    assert (made.reward, made.fault, made.is_decided) == (0.0, "ValueError: no", False)
    made = reward(FUNCTION, Verdict.TIMED_OUT, values={"": FunctionValue(1.0)})
    assert (made.reward, made.is_decided) == (0.0, False)


def test_a_group_has_signal_where_its_rewards_differ():
    def group(*values, verdict=Verdict.WRONG):
        rollouts = [reward(FUNCTION, verdict, values={"": value}) for value in values]
        return Group("p", [1], tuple(rollouts))

    assert group(FunctionValue(0.1), FunctionValue(0.2)).has_signal, "all are wrong, and one is better"
    assert not group(FunctionValue(0.1), FunctionValue(0.1)).has_signal
    assert not group(FunctionValue(0.1), FunctionValue(fault="no")).has_signal
    packed = [group(FunctionValue(0.3, {"a": 0.1, "b": 0.2}), FunctionValue(fault="no"), FunctionValue(0.1))]
    assert unpack_groups(pack_groups(packed)) == packed


def test_a_rollout_comes_back_from_its_journal_with_every_bit():
    values = {"": FunctionValue(0.0, {"a": 0.1, "b": 0.2})}
    made = [
        reward({**FUNCTION, "weights": {"a": 3.0}}, values=values),
        reward(FUNCTION, values={"": FunctionValue(fault="ValueError: no")}),
        reward(FUNCTION, Verdict.TIMED_OUT, values=values),
        reward(VERDICT, Verdict.WRONG),
    ]
    assert made[0].reward == 3.0 * 0.1 + 0.2
    records = [Finished(0, number, one.sample, "", one.verdict, one.custom) for number, one in enumerate(made)]
    stored = [record_from_json(json.loads(json.dumps(record_to_json(record)))) for record in records]
    params = settings(reward=VERDICT, overlong=NONE)
    assert [recorded_rollout(one.sample, "", one.verdict, params, one.custom) for one in stored] == made
    with pytest.raises(UserError, match="has no rewards of its custom function: record it again"):
        recorded_rollout(sample(), "", Verdict.WRONG, settings(reward=FUNCTION, overlong=NONE), {})


def test_a_replay_does_not_ask_the_function_again(custom, taught, tmp_path):
    """Rewards that float32 cannot hold, parts that are in no table, and failures all come from the schedule."""
    scaled = {**FUNCTION, "arguments": {"scale": 0.1}, "weights": {"digits": 0.1}}
    changes = {"rl.reward": scaled, "rl_rounds.rl_1.steps": 4, "verifier.abort_undecided_fraction": 0.9}
    changes |= {"rl.overlong": NONE, "rl.advantage": {"kind": "reward"}, "rl.policy_loss": {"kind": "reinforce"}}
    main(rl_flags(taught, write_params(tmp_path / "params.yaml", changes), tmp_path / "recorded"))
    (custom / "mine.py").unlink()
    params = replay_params(tmp_path, changes, copied(tmp_path / "recorded", tmp_path / "kept"))
    main(rl_flags(taught, params, tmp_path / "replayed"))
    assert_replayed(tmp_path / "replayed", tmp_path / "recorded")
    assert any("reward/part_digits" in row for row in curve(tmp_path / "replayed"))


def test_a_round_learns_resumes_and_counts_what_failed(custom, taught, tmp_path, monkeypatch):
    """Responses that contain a 2 fail; they stay in the table but are not trained on."""
    changes = {
        "rl.reward": {**FUNCTION, "arguments": {"scale": 2.0}, "weights": {"digits": 0.1}},
        "rl_rounds.rl_1.steps": 5,
        "verifier.abort_undecided_fraction": 0.9,
        "rl.evaluation": {**HELD_OUT, "keep": "best"},
    }
    params = write_params(tmp_path / "params.yaml", changes)
    main(rl_flags(taught, params, tmp_path / "whole"))
    start, *rows = curve(tmp_path / "whole")
    assert 0 < start["evaluation/accuracy"] < 1, "verdicts, and no rewards"
    frame = read_table(tmp_path / "whole/rl_1.parquet", ROLLOUT)
    failed = frame["response"].str.contains("2")
    assert failed.any() and not frame[failed]["is_trained"].any() and (frame[failed]["reward"] == 0).all()
    drawn = [8 * row["groups/drawn"] for row in rows]
    fractions = [row["reward/failed_fraction"] for row in rows]
    assert sum(count * one for count, one in zip(drawn, fractions, strict=True)) == pytest.approx(failed.sum())
    # The scale of 2 is an argument of the function.
    rewarded = zip(drawn, fractions, (row["reward/part_right"] for row in rows), strict=True)
    right = (frame[~failed]["verdict"] == "correct").sum()
    assert sum(count * (1 - lost) * part for count, lost, part in rewarded) == pytest.approx(2 * right)
    assert "reward/part_digits" in rows[0] and frame["is_trained"].any()
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "other-state"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_after_three_steps(patch)
        main(rl_flags(taught, params, tmp_path / "killed"))
    main(rl_flags(taught, params, tmp_path / "killed"))
    assert_same(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def score(respones): return 1", "wants respones, which no row has"),
        ("def score(response): raise ValueError('no')", "the custom reward could not decide .* ValueError: no"),
    ],
)
def test_a_function_that_fails_stops_the_round_in_one_sentence(custom, taught, tmp_path, source, message):
    (custom / "mine.py").write_text(source)
    params = write_params(tmp_path / "params.yaml", {"rl.reward": FUNCTION, "rl_rounds.rl_1.steps": 2})
    with pytest.raises(UserError, match=message):
        main(rl_flags(taught, params, tmp_path))
    assert not (tmp_path / "rl_1").exists()


@pytest.mark.parametrize("name", ["pass@1", "style(v2)", "a//b", "a/../b", "", "right", "style v2.1", "länge", "9-a"])
def test_names_of_parts_are_those_that_mlflow_takes_for_a_curve(name):
    from mlflow.utils.validation import _validate_metric_name

    part = {"weight": 1.0, "reward": {"kind": "environment"}}
    function = {"kind": "function", "file": "custom/a.py", "name": "f", "weights": {name: 2.0}}
    rewards = [{"kind": "sum", "rewards": {name: part}}, function]
    try:
        _validate_metric_name(f"reward/part_{name}")
        is_taken = bool(name)
    except MlflowException:
        is_taken = False
    for reward in rewards:
        with nullcontext() if is_taken else pytest.raises(ValueError, match="names a curve"):
            TypeAdapter(RewardParams).validate_python(reward)
