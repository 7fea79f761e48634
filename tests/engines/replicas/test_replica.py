"""A replica without Ray: orders in, reports out, and weights that change only between trajectories."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from stages.engines.relays.published_weights import PublishedWeights
from stages.engines.replicas.fleet import build_replica_sampler
from stages.engines.replicas.replica import ACTIVITIES, Orders, Probe, Replica
from stages.engines.samplers.protocol import PartialResponse, SamplingSettings, Trajectory
from stages.foundations.params import PlainPrompt
from tests.fakes.engine_params import TORCH_SAMPLER
from tests.fakes.environments import section
from tests.fakes.stepping import SETTINGS, TRAJECTORIES, alone, stepping_sampler, tokens
from tests.fakes.tiny_policy import plain_logprobs, tiny_model, write_tiny_policy

PROBE_PROMPTS, PROBE_RESPONSES = [[3, 4], [5]], [[6, 7, 8], [9]]


def probe_of(model, max_gap=1e-3):
    pairs = zip(PROBE_PROMPTS, PROBE_RESPONSES, strict=True)
    found = [value for pair in pairs for value in plain_logprobs(model, *pair).tolist()]
    return Probe(PROBE_PROMPTS, PROBE_RESPONSES, found, max_gap)


def publish(weights, version, seed, probe=None):
    model = tiny_model(seed)
    metadata = (probe or probe_of(model)).to_metadata()
    weights.publish(version, model.named_parameters(), metadata)


@pytest.fixture
def weights(tmp_path):
    return PublishedWeights(tmp_path / "weights")


def replica_of(policy, weights=None):
    return Replica(partial(stepping_sampler, policy), weights.folder if weights else None, None if weights else 0)


def finish(replica, report_seconds=10.0):
    report = replica.advance(Orders(report_seconds=report_seconds))
    assert report.load.running == 0
    return report


def test_it_draws_what_a_sampler_alone_draws(policy):
    replica = replica_of(policy)
    report = replica.advance(Orders(settings=SETTINGS, begin=TRAJECTORIES, report_seconds=20.0))
    assert tokens(report.ended) == alone(policy)
    assert report.version == 0 and {sample.policy_version for sample in report.ended.values()} == {0}
    assert report.decode_steps >= 12
    assert not report.new_tokens and report.load.running == report.load.waiting == 0


def test_an_idle_replica_reports_at_once_and_a_busy_one_after_a_step(policy):
    replica = replica_of(policy)
    report = replica.advance(Orders())
    assert report.decode_steps == 0 and report.ended == {}
    report = replica.advance(Orders(settings=SETTINGS, begin=TRAJECTORIES, report_seconds=0.0))
    assert report.decode_steps == 1
    assert {name: len(begun.token_ids) for name, begun in report.new_tokens.items()} == dict(t0=1, t1=1, t2=1, t3=1)
    assert (report.load.running, report.load.waiting) == (4, 2)


def test_seconds_by_activity_add_up(policy):
    replica = replica_of(policy)
    reports = [replica.advance(Orders(settings=SETTINGS, begin=TRAJECTORIES, report_seconds=0.0))]
    reports += [replica.advance(Orders(report_seconds=0.0)) for _ in range(4)]
    gaps = [
        abs(sum(later.seconds.values()) - (later.ended_at - earlier.ended_at)) for earlier, later in pairwise(reports)
    ]
    assert min(gaps) < 0.05  # other processes may run between the readings of the two clocks
    second = replica.advance(Orders(report_seconds=30.0))
    assert set(second.seconds) == set(ACTIVITIES)
    assert second.seconds["decode"] > 0 and second.seconds["prefill"] > 0 and second.seconds["idle"] == 0
    third = replica.advance(Orders())
    assert third.seconds["idle"] > 0 and third.seconds["decode"] == 0


def test_a_withdrawn_trajectory_goes_on_elsewhere_to_the_same_end(policy):
    source, destination = replica_of(policy), replica_of(policy)
    source.advance(Orders(settings=SETTINGS, begin=TRAJECTORIES, report_seconds=0.0))
    streamed = source.advance(Orders(report_seconds=0.0))
    report = source.advance(Orders(withdraw=("t0", "t1", "nobody"), report_seconds=0.0))
    assert set(report.withdrawn) == {"t0", "t1"}
    assert list(report.withdrawn["t0"].token_ids)[1] == streamed.new_tokens["t0"].token_ids[0]
    moved = {name: replace(TRAJECTORIES[name], begun=begun) for name, begun in report.withdrawn.items()}
    ended = destination.advance(Orders(settings=SETTINGS, begin=moved, under=0, report_seconds=20.0)).ended
    ended |= finish(source).ended
    assert tokens(ended) == alone(policy)


def test_nothing_is_served_before_the_first_pull(policy, weights):
    replica = replica_of(policy, weights)
    report = replica.advance(Orders(settings=SETTINGS, begin=TRAJECTORIES))
    assert report.version is None
    assert set(report.withdrawn) == set(TRAJECTORIES) and report.decode_steps == 0
    report = replica.advance(Orders(pull="newest", begin=TRAJECTORIES))
    assert "no version yet" in report.pull_failed and set(report.withdrawn) == set(TRAJECTORIES)
    publish(weights, 4, seed=0)
    report = replica.advance(Orders(pull="newest", begin=TRAJECTORIES, report_seconds=20.0))
    assert report.version == report.pulled == 4 and report.probe_gap < 1e-4
    assert tokens(report.ended) == alone(policy)
    assert {sample.policy_version for sample in report.ended.values()} == {4}


def test_weights_do_not_change_under_what_is_in_flight(policy, weights):
    replica = replica_of(policy, weights)
    publish(weights, 1, seed=0)
    publish(weights, 2, seed=9)
    replica.advance(Orders(pull=1, settings=SETTINGS, begin=TRAJECTORIES, report_seconds=0.0))
    report = replica.advance(Orders(pull="newest", report_seconds=0.0))
    assert report.version == 1 and "in flight" in report.pull_failed
    with pytest.raises(RuntimeError, match="settings cannot change"):
        replica.advance(Orders(settings=SamplingSettings(0.5, 1.0, 0, 12, None)))
    withdraw = tuple(TRAJECTORIES)
    report = replica.advance(Orders(withdraw, pull="newest", begin=TRAJECTORIES, report_seconds=20.0))
    assert report.version == 2 and report.ended.keys() == TRAJECTORIES.keys()
    assert tokens(report.ended) != alone(policy)


def test_a_probe_that_disagrees_keeps_the_replica_from_serving(policy, weights):
    replica = replica_of(policy, weights)
    publish(weights, 1, seed=0)
    publish(weights, 2, seed=9, probe=probe_of(tiny_model(0)))
    replica.advance(Orders(pull=1, settings=SETTINGS))
    report = replica.advance(Orders(pull=2, begin=TRAJECTORIES))
    assert "log-prob differs by" in report.pull_failed and report.version is None
    assert set(report.withdrawn) == set(TRAJECTORIES)
    report = replica.advance(Orders(pull=1, begin=TRAJECTORIES, report_seconds=20.0))
    assert report.version == 1
    assert tokens(report.ended) == alone(policy)


def test_weights_that_stood_still_are_found_whatever_the_bound(policy, weights):
    replica = replica_of(policy, weights)
    publish(weights, 1, seed=0)
    moved = probe_of(tiny_model(0), max_gap=1.0)
    publish(weights, 2, seed=0, probe=Probe(moved.prompts, moved.responses, [x - 0.5 for x in moved.logprobs], 1.0))
    assert replica.advance(Orders(pull=1)).pull_failed is None
    assert "not at all" in replica.advance(Orders(pull=2)).pull_failed


@pytest.mark.parametrize("orders", [Orders(pull=7, under=7), Orders(under=1)], ids=["gone", "another version"])
def test_what_cannot_be_drawn_under_its_version_is_given_back(policy, weights, orders):
    replica = replica_of(policy, weights)
    publish(weights, 2, seed=0)
    replica.advance(Orders(pull=2, settings=SETTINGS))
    begun = PartialResponse([9], [-1.0])
    report = replica.advance(replace(orders, begin={"t0": Trajectory([5, 6], 100, begun)}))
    assert report.withdrawn == {"t0": begun} and report.version == 2
    assert ("version 7" in (report.pull_failed or "")) == (orders.pull == 7)


def test_who_only_sends_messages_or_moves_files_needs_no_torch():
    modules = "stages.engines.replicas.fleet, stages.engines.relays.relay"
    program = f"import sys; import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_replica_waits_for_tools_and_reports_what_they_have_said(tmp_path):
    """The policy's end token ends a turn; every turn is a guess without a number."""
    example = {"file": "custom/guess_number.py", "name": "GuessNumber"}
    environment = section("custom", **example, max_turns=3, max_observation_tokens=30)
    prompt = PlainPrompt(kind="plain", template="{problem}", environment=environment)
    # Nearly every token ends a turn.
    folder = write_tiny_policy(tmp_path / "policy")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [*range(60, 258)]}))
    replica = Replica(partial(build_replica_sampler, TORCH_SAMPLER, folder, prompt), None, 0)
    problem = {"problem_id": "p", "problem": "", "answer": ""}
    begin = {name: replace(one, problem=problem) for name, one in TRAJECTORIES.items()}
    settings = replace(SETTINGS, max_response_tokens=200)
    report = replica.advance(Orders(settings=settings, begin=begin, report_seconds=0.0))
    told, ended = {name: list(one.observed) for name, one in report.new_tokens.items()}, dict(report.ended)
    assert report.load.running + report.load.waiting == len(begin) - len(ended)
    while len(ended) < len(begin):
        # A report after each step, so that none can skip an episode's middle.
        report = replica.advance(Orders(report_seconds=0.0))
        ended |= report.ended
        for name, new in report.new_tokens.items():
            told.setdefault(name, []).extend(new.observed)
    replica.close()
    for name, sample in ended.items():
        assert list(sample.episode.observed)[: len(told.get(name, []))] == told.get(name, [])
        assert sample.episode.turns == 3 and not sample.episode.fault
    assert any(told.values())
