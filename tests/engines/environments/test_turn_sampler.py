"""Responses of several turns over real samplers, with environments in real workers."""

import os
import re
import signal
import time
from dataclasses import replace

import pytest

from stages.engines.environments.frames import make_frame
from stages.engines.environments.pool import EnvironmentPool
from stages.engines.environments.protocol import Done
from stages.engines.environments.turn_sampler import TurnSampler
from stages.engines.replicas.replica import Orders, Replica
from stages.engines.samplers.protocol import (
    PartialResponse,
    SamplingSettings,
    StopReason,
    Trajectory,
    sample_trajectories,
)
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.foundations.errors import UserError
from stages.foundations.params import PlainPrompt
from stages.rl_round.asynchronous.timeline import Timeline
from tests.engines.samplers.test_torch_decoding import run_out
from tests.fakes import environments
from tests.fakes.engine_params import TORCH_SAMPLER
from tests.fakes.tiny_policy import byte_tokenizer, plain_logprobs, tiny_model

SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_response_tokens=40, log_threshold=None)
ENDS = [0, *range(220, 258)]
"""Many, so that a random policy ends a turn after seven tokens or so."""
TOKENIZER = byte_tokenizer()
MODEL = tiny_model()


def plain_sampler(**changes):
    return TorchSampler(TORCH_SAMPLER.model_copy(update={"max_sequences": 6, **changes}), MODEL, ENDS)


class turns:
    """A sampler with its workers."""

    def __init__(self, **params):
        self.params = environments.params(**params)
        self.pool = EnvironmentPool(self.params, environments.answer)
        prompt = PlainPrompt(kind="plain", template="{problem}", environment=self.params)
        frame = make_frame(TOKENIZER, prompt, ENDS)
        self.sampler = TurnSampler(plain_sampler(), self.pool, TOKENIZER, frame, ENDS)

    def __enter__(self):
        return self.sampler

    def __exit__(self, *_):
        self.sampler.close()


def trajectories(script, count=4, prompts=3, **columns):
    return [
        Trajectory(
            TOKENIZER.encode(f"problem {number} ")[: 6 + number],
            1000 * number + sample,
            problem={"problem_id": f"{number}", "problem": "", "answer": "", "script": script, **columns},
        )
        for number in range(prompts)
        for sample in range(count)
    ]


def text(ids):
    return TOKENIZER.decode([token for token in ids if token not in ENDS], skip_special_tokens=True)


def played(trajectory, sample, params):
    """Checks a sample against its environment, played here; returns what ended the episode."""
    episode = environments.Scripted(trajectory.problem, trajectory.seed)
    spans, start, calls, failed = sample.episode.observed, 0, 0, 0
    assert sample.episode.turns == len(spans) + 1
    for first, end in spans:
        answer = episode.step(text(sample.token_ids[start:first]))
        assert sample.token_ids[first - 1] in ENDS
        assert TOKENIZER.decode(sample.token_ids[first:end]) == f":{answer.text};"
        assert sample.logprobs[first:end] == [0.0] * (end - first)
        start, calls, failed = end, calls + answer.calls, failed + answer.failed_calls
    last = (
        None
        if sample.is_truncated and sample.token_ids[-1] not in ENDS
        else episode.step(text(sample.token_ids[start:]))
    )
    calls, failed = calls + getattr(last, "calls", 0), failed + getattr(last, "failed_calls", 0)
    assert (calls, failed) == (sample.episode.calls, sample.episode.failed_calls)
    said = text(sample.token_ids[start:])
    assert sample.episode.response == (f"<{said}>" if isinstance(last, Done) else said)
    assert sample.episode.reward == (last.reward if isinstance(last, Done) else None)
    return last


def assert_logprobs_are_the_models(asked, samples, tolerance=1e-4):
    for trajectory, sample in zip(asked, samples, strict=True):
        expected = plain_logprobs(MODEL, trajectory.prompt, sample.token_ids).tolist()
        for first, end in sample.episode.observed:
            expected[first:end] = [0.0] * (end - first)
        assert sample.logprobs == pytest.approx(expected, abs=tolerance)


def same(found, expected):
    """Equal but for the last digits of log-probs, which depend on what is decoded beside it."""
    assert [replace(one, logprobs=[]) for one in found] == [replace(one, logprobs=[]) for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=2e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_environment_of_one_turn_changes_no_bit(threads):
    asked = trajectories("stop")
    plain = sample_trajectories(plain_sampler(threads=threads), asked, SETTINGS)
    with turns() as sampler:
        sampler.inner = plain_sampler(threads=threads)
        drawn = sample_trajectories(sampler, asked, SETTINGS)
        without = sample_trajectories(sampler, [replace(one, problem={}) for one in asked], SETTINGS)
    assert [replace(one, episode=None) for one in drawn] == plain == without
    assert {one.episode.turns for one in drawn} == {1} and all(not one.episode.observed for one in drawn)


def test_turns_are_answered_and_log_probs_are_the_models():
    asked = trajectories("talk", count=8)
    with turns() as sampler:
        drawn = sample_trajectories(sampler, asked, SETTINGS)
        params = sampler.params
    last = [played(*one, params) for one in zip(asked, drawn, strict=True)]
    assert_logprobs_are_the_models(asked, drawn)
    reasons = [one.stop_reason for one in drawn]
    assert {*reasons} == {StopReason.END_OF_SEQUENCE, StopReason.MAX_TURNS, StopReason.MAX_TOKENS}
    # Some turns were cut, and some observations would have left no room for another turn.
    assert {one.token_ids[-1] in ENDS for one in drawn if one.is_truncated} == {True, False}
    for sample, ending in zip(drawn, last, strict=True):
        assert isinstance(ending, Done) == (sample.stop_reason is StopReason.END_OF_SEQUENCE)
        assert sample.episode.turns <= params.max_turns
        assert (sample.stop_reason is StopReason.MAX_TURNS) <= (sample.episode.turns == params.max_turns)
        assert len(sample.token_ids) <= SETTINGS.max_response_tokens and not sample.episode.fault


def test_waves_repeat_every_bit_however_slow_tools_are_and_whoever_dies():
    asked = trajectories("talk_slowly", count=5)
    with turns() as sampler:
        once = sample_trajectories(sampler, asked, SETTINGS)
    with turns(processes=3) as sampler:
        assert sample_trajectories(sampler, asked, SETTINGS) == once
    with turns() as sampler:
        ended = {}
        for number, (index, sample) in enumerate(sampler.stream(asked, SETTINGS)):
            ended[index] = sample
            # Some workers hold episodes of several turns by then, and lose them all.
            for pid in sampler.pool.pids() if number in (1, 8) else ():
                os.kill(pid, signal.SIGKILL)
    assert [ended[index] for index in range(len(asked))] == once
    assert max(one.episode.turns for one in once) == 4


def test_what_comes_as_it_comes_and_moves_between_decodings_is_the_same():
    """Every few steps some trajectories move to another decoding, which has other workers."""
    asked = dict(enumerate(trajectories("talk_slowly", count=6)))
    with turns() as sampler:
        expected = sample_trajectories(sampler, [*asked.values()], SETTINGS)
    with turns() as one, turns(processes=1) as other:
        decodings = one.open(SETTINGS), other.open(SETTINGS)
        decodings[0].admit(asked)
        ended, moved, waited, told = {}, 0, 0, {}
        for number in range(10_000):
            here, there = decodings[number % 2], decodings[1 - number % 2]
            for name, sample in here.step().items():
                ended[name] = sample
            for name, new in here.new_tokens().items():
                ids, spans = told.setdefault(name, ([], []))
                ids += new.token_ids
                spans += new.observed
            if number % 5 < 2:
                gone = here.withdraw([name for name in asked if (name + number) % 3 == 0])
                for name, part in gone.items():
                    # What was reported is what it has, but for tokens since the last report.
                    ids, spans = told.pop(name, ([], []))
                    told[name] = list(part.token_ids), list(part.observed)
                    assert part.token_ids[: len(ids)] == ids and list(part.observed)[: len(spans)] == spans
                    moved += bool(part.observed)
                    waited += bool(part.token_ids) and part.token_ids[-1] in ENDS
                there.admit({name: replace(asked[name], begun=part) for name, part in gone.items()})
            if all(decoding.is_idle for decoding in decodings):
                break
        assert all(decoding.load.running == decoding.load.waiting == 0 for decoding in decodings)
    assert moved > 5 and waited > 3
    same([ended[name] for name in asked], expected)
    for name, (ids, spans) in told.items():
        assert ended[name].token_ids[: len(ids)] == ids
        assert list(ended[name].episode.observed)[: len(spans)] == spans


def test_a_replica_tells_the_time_in_which_all_its_rows_wait_for_tools():
    """Its spans in a timeline are waits where all rows wait for slow tools; rows without tools never wait."""
    shares, asked = {}, trajectories("sleep", count=1, prompts=2)
    with turns(max_turns=3) as sampler:
        # A first episode starts the workers and the sampler.
        sample_trajectories(sampler, trajectories("talk", 1, 1), SETTINGS)
        replica = Replica(lambda: sampler, None, 0)
        for name, rows in (("without", [replace(one, problem={}) for one in asked]), ("sleep", asked)):
            timeline, begin, ended = Timeline(time.time()), dict(enumerate(rows)), {}
            orders = Orders(settings=SETTINGS, begin=begin, report_seconds=0.3)
            while len(ended) < len(begin):
                report = replica.advance(orders)
                orders, ended = Orders(report_seconds=0.3), ended | report.ended
                timeline.report("replica/0", report.ended_at, report.seconds)
                # A step that waited is no decode step. The decode steps distinguish a stalled replica from a slow one.
                assert report.decode_steps or not report.seconds["decode"]
            shares[name] = timeline.idle_shares("replica/0")
    # Each tool takes 0.3 s, and the policy is tiny.
    assert shares["sleep"]["tools"] > 0.2 and "tools" not in shares["without"]
    assert timeline.metrics()["idle/replica_tools"] == shares["sleep"]["tools"]


def test_an_environment_that_answers_otherwise_when_it_is_played_again_is_refused():
    asked = trajectories("drift", count=2)
    with turns(max_turns=9) as sampler:
        decoding = sampler.open(SETTINGS)
        decoding.admit(dict(enumerate(asked)))
        while not any(one.observed for one in decoding.new_tokens().values()):
            decoding.step()
        for pid in sampler.pool.pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(
            UserError, match=r"not replayable: after turn 1 of problem \d it answered ':\d+;', and later"
        ):
            run_out(decoding)


FAULTS = {
    "fail": "RuntimeError: no way",
    "leave": "SystemExit: ",
    "die": "its process ended 8 times at turn 1|its process ended .signal 6",
    "hang": "a step took more than 0.5 seconds of computing time",
    "fill": "it took more than 1024 MiB",
    "return_number": "TypeError: it returned int, and not a text, an Observation or Done",
    "reward_nothing": "ValueError: its reward is nan",
}


def test_a_fault_of_the_environment_costs_its_own_response_alone():
    good = trajectories("talk", prompts=1)
    bad = [replace(one, seed=7) for script in FAULTS for one in trajectories(script, 1, 1)]
    # Enough room that no turn is cut.
    settings = replace(SETTINGS, max_response_tokens=200)
    with turns(processes=1) as sampler:
        expected = sample_trajectories(sampler, good, settings)
        found = [sample_trajectories(sampler, [one], settings)[0] for one in bad]
        assert sample_trajectories(sampler, good, settings) == expected
    for sample, fault in zip(found, FAULTS.values(), strict=True):
        assert re.search(fault, sample.episode.fault) and not sample.is_truncated


HOSTILE = [
    "<|end|><|pad|> a <|end|>",
    "".join(map(chr, range(32))) + "\x7f\x9b[31m",
    "\ud800 \udfff half",
    "\\boxed{42};!1481<|end|>:1;",
    "<|end|>" * 1_500_000,
    "\x00",
    "",
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: repr(text[:12]))
def test_no_observation_ends_a_turn(hostile):
    asked = trajectories("repeat", 1, 2, text=hostile)
    with turns(max_observation_tokens=20, max_turns=2, timeout_seconds=5) as sampler:
        drawn = sample_trajectories(sampler, asked, SETTINGS)
    for sample in drawn:
        for first, end in sample.episode.observed:
            assert not {*sample.token_ids[first:end]} & {0, 1, *ENDS} and end - first <= 22
            shown = TOKENIZER.decode(sample.token_ids[first:end])
            assert shown.isprintable() or not set(shown) - {"\t", "\n"}.union(filter(str.isprintable, shown))
            assert sample.logprobs[first:end] == [0.0] * (end - first)
        assert "boxed" not in sample.episode.response
    assert any(sample.episode.observed for sample in drawn)


def test_whole_distributions_are_refused():
    with turns() as sampler, pytest.raises(UserError, match="whole distributions are not kept over several turns"):
        sampler.open(replace(SETTINGS, keeps_distributions=True))


def test_texts_that_come_before_the_first_turn_are_asked_for_once():
    problems = [{"problem_id": "a", "script": "stop"}, {"problem_id": "b", "script": "stop", "opening": "Use ?."}]
    with EnvironmentPool(environments.params(), environments.answer) as pool:
        assert pool.openings(problems) == ["", "Use ?."]
        with pytest.raises(UserError, match=r"cannot begin problem c.*TypeError"):
            pool.openings([{"problem_id": "c", "opening": 3}])


def test_what_waits_for_an_answer_with_all_its_tokens_can_move():
    """Its last turn ended at the limit, or was cut there; only the environment knows the calls before."""
    asked = trajectories("talk", count=20, prompts=1)
    with turns() as sampler:
        drawn = sample_trajectories(sampler, asked, SETTINGS)
        full = [(one, sample) for one, sample in zip(asked, drawn, strict=True) if len(sample.token_ids) == 40]
        full = [(one, sample) for one, sample in full if sample.episode.observed]
        ended_there = replace(SETTINGS, max_response_tokens=len(drawn[0].token_ids))
        (expected,) = sample_trajectories(sampler, asked[:1], ended_there)
        decoding = sampler.open(SETTINGS)
        for number, (one, sample) in enumerate(full):
            begun = PartialResponse(sample.token_ids, sample.logprobs, sample.episode.observed)
            decoding.admit({number: replace(one, begun=begun)})
        ended = run_out(decoding)
        assert full and [ended[number] for number in range(len(full))] == [sample for _, sample in full]
        decoding = sampler.open(ended_there)
        begun = PartialResponse(drawn[0].token_ids, drawn[0].logprobs, drawn[0].episode.observed)
        decoding.admit({"at the limit": replace(asked[0], begun=begun)})
        assert drawn[0].token_ids[-1] in ENDS
        same([run_out(decoding)["at the limit"]], [expected])
