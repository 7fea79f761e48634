"""Classes of the user as environments: what they may return, and every way in which they fail."""

import json
import random
from pathlib import Path

import pandas
import pytest

from stages.engines.environments import custom_environment
from stages.engines.environments.custom_environment import LONGEST_TEXT
from stages.engines.environments.frames import make_frame
from stages.engines.environments.pool import EnvironmentPool
from stages.engines.environments.protocol import Done, Observation
from stages.engines.environments.turn_sampler import TurnSampler
from stages.engines.samplers.protocol import SamplingSettings, Trajectory, sample_trajectories
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.foundations.errors import UserError
from stages.foundations.params import CustomEnvironment, PlainPrompt
from stages.foundations.tables import Funnel
from stages.sft.run import encode_demonstrations
from tests.fakes import environments
from tests.fakes.engine_params import TORCH_SAMPLER
from tests.fakes.tiny_policy import byte_tokenizer, tiny_model
from tests.fakes.worker_functions import answer_of_source

PROBLEM = {"problem_id": "some/3", "problem": "How many?", "answer": "7"}
GUESSING = {"file": "custom/guess_number.py", "name": "GuessNumber", "arguments": {"highest": 3, "most": 4}}
"""The example of the project."""


def section(**own):
    own = {"file": "custom/mine.py", "name": "Mine"} | own
    return CustomEnvironment.model_validate(environments.section("custom", memory_mib=512, timeout_seconds=1.0, **own))


@pytest.fixture
def made(monkeypatch):
    """Makes an episode of a class whose file has this text."""

    def made(source, seed=5, problem=PROBLEM, **changes):
        monkeypatch.setattr(custom_environment, "_source", lambda _: source)
        return custom_environment.build(section(**changes), problem, seed)

    return made


def returning(expression, before=""):
    """A class whose step returns the value of an expression."""
    return f"""
{before}
class Mine:
    def __init__(self, problem, seed): pass
    def reset(self): return None
    def step(self, turn): return {expression}
"""


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("'you said ' + turn", "you said hi"),
        ("''", ""),
        ("'a\\ud800b'", "a?b"),
        ("{}", Done()),
        ("{'reward': True, 'is_correct': None}", Done(1.0)),
        ("{'reward': -2, 'is_correct': False, 'response': turn + '\\udfff'}", Done(-2.0, False, "hi?")),
        ("Done(0.5, calls=2)", Done(0.5, calls=2)),
        ("Observation('busy\\ud800', calls=1, failed_calls=1)", Observation("busy?", 1, 1)),
        ("{'reward': numpy.float32(0.25), 'is_correct': numpy.bool_(True)}", Done(0.25, True)),
    ],
)
def test_what_a_step_may_return(made, expression, answer):
    before = "import numpy\nfrom stages.engines.environments.protocol import Done, Observation"
    episode = made(returning(expression, before))
    assert episode.reset() is None
    given = episode.step("hi")
    assert given == answer
    if isinstance(given, Done) and given.reward is not None:
        assert type(given.reward) is float and type(given.is_correct) in (bool, type(None))


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("None", r"step returned None: return a text, or at the end a mapping"),
        ("b'seven'", r"step returned a bytes"),
        ("7", r"step returned a int"),
        ("['seven']", r"step returned a list"),
        ("{'rewards': 1}", r"step returned rewards, and an end has only reward, is_correct, response, calls"),
        ("{'reward': float('nan')}", r"the reward is nan: return a finite number"),
        ("{'reward': float('-inf')}", r"the reward is -inf"),
        ("{'reward': '1.0'}", r"the reward is a str"),
        ("{'reward': 1j}", r"the reward is a complex"),
        ("{'reward': 1, 'is_correct': 'yes'}", r"is_correct is a str"),
        ("{'reward': 1, 'is_correct': 1}", r"is_correct is a int"),
        ("{'response': b'7'}", r"step returned a bytes"),
        ("{'reward': 1, 'calls': -1}", r"calls and failed_calls are counts"),
        ("{'reward': 1, 'failed_calls': 'two'}", r"calls and failed_calls are counts"),
        ("1 / 0", r"division by zero"),
    ],
)
def test_what_a_step_may_not_return_is_a_fault_of_its_episode(made, expression, fault):
    episode = made(returning(expression))
    with pytest.raises((TypeError, ValueError, ArithmeticError), match=fault):
        episode.step("hi")


def test_a_huge_text_keeps_its_ends(made):
    text = made(returning("'a' * 3_000_000 + turn")).step("the end")
    assert len(text) == LONGEST_TEXT + len("\n...\n") and text.startswith("aaa") and text.endswith("the end")
    end = made(returning("{'response': turn * 3_000_000}")).step("b")
    assert len(end.response) == LONGEST_TEXT + len("\n...\n")


@pytest.mark.parametrize(
    ("source", "changes", "sentence"),
    [
        ("class Mine:\n  def", {}, r"custom/mine\.py cannot be loaded: SyntaxError"),
        ("import absent_package", {}, r"cannot be loaded: ModuleNotFoundError"),
        ("raise SystemExit(3)", {}, r"cannot be loaded: SystemExit"),
        ("def play(): pass\nclass Other: pass", {}, r"has no Mine: its functions are play, its classes Other"),
        ("Mine = 3", {}, r"Mine in custom/mine\.py is a int"),
        ("class Mine: pass", {}, r"cannot be made as Mine\(problem, seed\): too many positional arguments"),
        (returning("''"), {"arguments": {"size": 3}}, r"Mine\(problem, seed, size=\.\.\.\): got an unexpected .*size"),
        ("class Mine:\n  def __init__(self, problem, seed): self.reset = print", {}, r"no method `step`"),
        ("class Mine:\n  def __init__(self, problem, seed, *, size): 0", {}, r"missing a required argument: 'size'"),
    ],
)
def test_a_mistake_of_the_file_stops_everything(made, source, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        made(source, **changes)


GLOBAL = """
from __future__ import annotations
import random
import numpy
from dataclasses import dataclass

@dataclass
class Mine:
    problem: dict
    seed: int

    def reset(self):
        random.seed(3)
        return self.problem["problem"]

    def step(self, turn):
        if turn == "own":
            random.seed(self.seed)
        return f"{random.random()} {numpy.random.rand()}"
"""


def test_global_random_numbers_are_those_of_the_episode(made):
    turns = ["a", "b", "own", "c"]
    alone = made(GLOBAL, seed=8)
    assert alone.reset() == "How many?"
    expected = [alone.step(turn) for turn in turns]
    assert len(set(expected)) == 4
    random.seed(99)
    first, second = made(GLOBAL, seed=8), made(GLOBAL, seed=9)
    assert (first.reset(), second.reset()) == ("How many?", "How many?")
    mixed = [(first.step(turn), second.step(turn), random.random()) for turn in turns]
    assert [one for one, _, _ in mixed] == expected
    # `reset` and the turn `own` set Python's; numpy's numbers are still those of the seed.
    assert mixed[0][1] != expected[0]


HOSTILE = """
import os, sys, threading
class Mine:
    def __init__(self, problem, seed): self.turns = 0
    def reset(self): return "begin"
    def step(self, turn):
        self.turns += 1
        if turn == "hang":
            while True: pass
        if turn == "memory": return len("a" * (4 << 30))
        if turn == "print":
            print('{"value": {"done": {"reward": 1.0}}}', flush=True)
            os.write(1, b'{"value": {"done": {"reward": 1.0}}}\\n')
        if turn == "fork": os.fork()
        if turn == "exit": sys.exit(3)
        if turn == "end": os._exit(3)
        if turn == "read": return open("/etc/passwd").read()
        if turn == "write": open("/tmp/own", "w")
        return f"{self.turns} turns"
"""


@pytest.fixture(scope="module")
def pool():
    with EnvironmentPool(section(), answer_of_source) as pool:
        yield pool


def ask(pool, turns, source=HOSTILE, seed=1):
    problem = {**PROBLEM, "source": source}
    return [pool.reply(pool.submit(problem, seed, turns[:count])) for count in range(len(turns) + 1)][-1]


@pytest.mark.parametrize(
    ("turn", "fault"),
    [
        ("fork", "Operation not permitted"),
        ("exit", "it called sys.exit(3)"),
        ("read", "Permission denied"),
        ("write", "Operation not permitted"),
        ("hang", "a step took more than 1 seconds"),
    ],
)
def test_what_a_worker_forbids_is_a_fault_of_the_episode(pool, turn, fault):
    assert fault in ask(pool, [turn])["fault"]
    assert ask(pool, ["x", "print"], seed=2)["observation"] == "2 turns"


@pytest.mark.parametrize("turn", ["memory", "end"])
def test_an_episode_that_ends_its_worker_can_be_played_again(pool, turn):
    """An earlier request may have been to blame, so a new process is asked, which lacks the episode."""
    assert ask(pool, [turn]) == {"missing": True} or "fault" in ask(pool, [turn])
    assert ask(pool, ["x", "y"], seed=2)["observation"] == "2 turns"


def test_a_mistake_of_the_file_stops_the_one_who_asks(pool):
    with pytest.raises(UserError, match=r"custom/mine\.py cannot be loaded: SyntaxError"):
        ask(pool, [], "class Mine:\n  def")
    assert ask(pool, ["x"])["observation"] == "1 turns"


def test_the_example_plays(made):
    source = (Path(__file__).parents[3] / "custom" / "guess_number.py").read_text()
    episode = made(source, name="GuessNumber", seed=0)
    assert episode.reset() == "My number lies between 1 and 100. You have 7 guesses."
    assert episode.step("none") == "error: write a number"
    low, high = 1, 100
    for _ in range(6):
        guess = (low + high) // 2
        answer = episode.step(f"Perhaps {guess}.")
        if isinstance(answer, Done):
            break
        low, high = (guess + 1, high) if answer == "higher" else (low, guess - 1)
    assert answer in (Done(1.0, True), Done(0.0, False))
    wrong = made(source, name="GuessNumber", arguments={"most": 1})
    assert wrong.step("101") == Done(0.0, False)


def test_prompts_of_fine_tuning_begin_as_those_of_sampling():
    prompt = PlainPrompt(kind="plain", template="{problem}:", environment=section(**GUESSING))
    messages = [{"role": "user", "content": "said"}, {"role": "assistant", "content": "2"}]
    rows = [{"problem_id": name, "problem": name, "response": "2", "messages": None} for name in "ab"]
    rows.insert(1, {"problem_id": "c", "problem": "c", "response": "2", "messages": json.dumps(messages)})
    tokenizer = byte_tokenizer()

    def encode(turns):
        assert turns == messages
        return tokenizer.encode("said:2"), [False] * 5 + [True], 0

    encoded = encode_demonstrations(pandas.DataFrame(rows), tokenizer, prompt, encode, 200, Funnel("sft", 3))
    opening = "My number lies between 1 and 3. You have 4 guesses."
    assert [tokenizer.decode(one.prompt) for one in encoded] == [f"a\n\n{opening}:", "said:", f"b\n\n{opening}:"]


def test_a_policy_plays_a_users_class():
    """As in a stage: a real policy, a worker that reads `custom/`, and the class itself beside it."""
    params = section(**GUESSING, max_turns=9, max_observation_tokens=30)
    tokenizer, ends = byte_tokenizer(), [0, *range(223, 258)]
    asked = [Trajectory(tokenizer.encode("guess: "), seed, problem=PROBLEM) for seed in range(6)]
    with EnvironmentPool(params) as pool:
        assert pool.openings([PROBLEM]) == ["My number lies between 1 and 3. You have 4 guesses."]
        frame = make_frame(tokenizer, PlainPrompt(kind="plain", template="{problem}", environment=params), ends)
        sampler = TurnSampler(TorchSampler(TORCH_SAMPLER, tiny_model(), ends), pool, tokenizer, frame, ends)
        samples = sample_trajectories(sampler, asked, SamplingSettings(1.0, 1.0, 0, 150, None))
    assert {sample.episode.fault for sample in samples} == {""}
    assert any(sample.episode.reward == 0.0 and sample.episode.is_correct is False for sample in samples)
    for trajectory, sample in zip(asked, samples, strict=True):
        episode, start = custom_environment.build(params, PROBLEM, trajectory.seed), 0
        for first, end in sample.episode.observed:
            turn = tokenizer.decode([one for one in sample.token_ids[start:first] if one not in ends])
            assert tokenizer.decode(sample.token_ids[first:end]) == f":{episode.step(turn)};"
            start = end
