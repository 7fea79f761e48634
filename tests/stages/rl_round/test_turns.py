"""Stages that sample responses of several turns, with tools in real workers. Every answer of the policy is a call."""

import json
import os
import signal

import pytest

from stages.__main__ import main
from stages.engines.environments.pool import EnvironmentPool
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.turns import problem_columns, problem_texts, turn_contradictions
from stages.foundations.params import ChatPrompt, PlainPrompt
from stages.foundations.tables import RESPONSE, ROLLOUT, read_table
from tests.fakes.rounds import NONE, assert_same
from tests.fakes.taught_policy import rl_flags, write_params
from tests.stages.test_respond import flags

TOOLS = {
    "kind": "tools",
    "tools": {"calculator": {"kind": "calculator", "busy_fraction": 0.5}},
    "calls": {"kind": "marked", "call": "\\", "answer": "!"},
    "frame": {"kind": "text", "before": ":", "after": ";\\"},
    "max_turns": 3,
    "max_observation_tokens": 4,
    "workers": {"processes": 2, "memory_mib": 1024, "timeout_seconds": 5.0},
}
CHANGES = {
    "prompt.environment": TOOLS,
    "rl.max_response_tokens": 48,
    "respond.max_response_tokens": 48,
    "rl_rounds.rl_1.steps": 2,
    "rl.overlong": NONE,
}


def test_a_round_gives_the_same_bytes_whoever_dies(taught, tmp_path, monkeypatch):
    params = write_params(tmp_path / "params.yaml", CHANGES)
    main(rl_flags(taught, params, tmp_path / "once"))
    submit, killed = EnvironmentPool.submit, []

    def kills(self, problem, seed, turns):
        if len(turns) == 2 and len(killed) < 2:
            killed.extend(self.pids())
            for pid in self.pids():
                os.kill(pid, signal.SIGKILL)
        return submit(self, problem, seed, turns)

    monkeypatch.setattr(EnvironmentPool, "submit", kills)
    main(rl_flags(taught, params, tmp_path / "again"))
    assert killed
    assert_same(tmp_path / "once", tmp_path / "again")
    rows = read_table(tmp_path / "once" / "rl_1.parquet", ROLLOUT).to_dict("records")
    assert max(row["turns"] for row in rows) == 3 and not any(row["environment_fault"] for row in rows)
    assert any(row["calls"] >= 2 and row["failed_calls"] for row in rows)


def test_benchmarks_are_answered_in_turns(taught, tmp_path):
    params = write_params(tmp_path / "params.yaml", CHANGES)
    main(flags(taught, tmp_path, params))
    rows = read_table(tmp_path / "responses.parquet", RESPONSE).to_dict("records")
    assert len(rows) == 30 and max(row["turns"] for row in rows) == 3
    assert json.loads((tmp_path / "responses.json").read_text())["calls/mean"] > 1


ROW = {"problem_id": "p", "problem": "1+1?", "answer": "2", "solution": None, "weight": float("nan"), "level": 3}
GUESSES = {name: TOOLS[name] for name in ("frame", "max_turns", "max_observation_tokens", "workers")}
GUESSES |= {"kind": "custom", "file": "custom/guess_number.py", "name": "GuessNumber"}


def prompt(environment=None, kind="plain", **changes):
    environment = environment and {**environment, **changes}
    if kind == "chat":
        return ChatPrompt(kind="chat", system="", suffix="", environment=environment)
    return PlainPrompt(kind="plain", template="{problem}", environment=environment)


def test_an_environment_knows_the_problem_and_may_add_a_text_to_it():
    assert problem_columns(prompt(), ROW) == {}
    known = {"problem_id": "p", "problem": "1+1?", "answer": "2", "level": 3}
    assert problem_columns(prompt(TOOLS), ROW) == known
    other = {**ROW, "problem_id": "q", "problem": "2+2?"}
    assert problem_texts(prompt(), [ROW, other]) == problem_texts(prompt(TOOLS), [ROW, other]) == ["1+1?", "2+2?"]
    guess = "\n\nMy number lies between 1 and 100. You have 7 guesses."
    assert problem_texts(prompt(GUESSES), [ROW, other]) == [f"1+1?{guess}", f"2+2?{guess}"]


SAMPLER = TorchSamplerParams(kind="torch", device="cpu", dtype="float32", threads=1, max_sequences=4)


@pytest.mark.parametrize(
    ("given", "stop", "told"),
    [
        (prompt(), None, ""),
        (prompt(), ["\n"], ""),
        (prompt(TOOLS), None, ""),
        (prompt(TOOLS, max_turns=1), None, "max_turns 1 ends an episode before"),
        (prompt(TOOLS, max_turns=1, tools={}), None, ""),
        (prompt(GUESSES, max_turns=1), None, ""),
        (prompt(TOOLS, max_observation_tokens=12), None, "no room for a turn in rl.max_response_tokens 12"),
        (prompt(TOOLS, max_observation_tokens=11), None, ""),
        (prompt(TOOLS), ["\n"], "sampler.stop would end a turn inside of an observation"),
        (prompt(TOOLS, frame={"kind": "chat"}), None, "frame.kind chat needs prompt.kind chat"),
        (prompt(TOOLS, "chat", frame={"kind": "chat"}), None, ""),
    ],
)
def test_settings_that_do_not_fit_turns_are_refused(given, stop, told):
    sampler = SAMPLER.model_copy(update={"stop": stop})
    sentences = turn_contradictions(given, sampler, {"rl.max_response_tokens": 12})
    assert len(sentences) == bool(told) and told in "".join(sentences)
