"""Replicas in real Ray actors: they serve, die, hang and are replaced; messages of replaced ones are ignored."""

import os
import signal
from dataclasses import replace
from functools import partial

import psutil
import pytest

from stages.engines.distributed.ray_session import ray_session
from stages.engines.relays.published_weights import PublishedWeights, weights_folder
from stages.engines.replicas.fleet import (
    Died,
    Fleet,
    FleetError,
    ReplicaSpec,
    Reported,
    Stalled,
    Started,
    check_room,
    gpus_each,
)
from stages.engines.replicas.replica import Orders
from stages.foundations.errors import UserError
from tests.fakes.engine_params import TORCH_SAMPLER, VLLM_SAMPLER
from tests.fakes.processes import assert_all_end, wait_until
from tests.fakes.stepping import (
    SETTINGS,
    TRAJECTORIES,
    alone,
    broken_sampler,
    refused_sampler,
    stepping_sampler,
    tokens,
)
from tests.fakes.tiny_policy import tiny_model

LONG = replace(SETTINGS, max_response_tokens=400)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("RETRACE_STATE", str(tmp_path_factory.mktemp("state")))
    patch.delenv("RAY_ADDRESS", raising=False)
    with ray_session(8) as run:
        yield run
    patch.undo()


class Hub:
    """Polls a fleet and stores its events."""

    def __init__(self, *arguments, **settings):
        self.fleet = Fleet(*arguments, **settings)
        self.events = []

    def until(self, condition):
        def has_come():
            is_met = condition()
            self.events += [] if is_met else self.fleet.poll(0.5)
            return is_met

        wait_until(has_come, told=self.events)

    def of(self, kind):
        return [event for event in self.events if type(event) is kind]

    @property
    def ended(self):
        return {name: one for event in self.of(Reported) for name, one in event.report.ended.items()}


@pytest.fixture
def hub_of(run):
    hubs = []

    def start(spec, count, stalled_seconds=60.0, report_seconds=0.2, start_seconds=240.0):
        hubs.append(Hub(spec, count, stalled_seconds, report_seconds, start_seconds))
        hubs[-1].until(lambda: len(hubs[-1].fleet.started()) == count)
        return hubs[-1]

    yield start
    for hub in hubs:
        hub.fleet.close()


def spec_of(policy, run=None, **settings):
    return ReplicaSpec(partial(stepping_sampler, policy, **settings), run, None if run else 0)


def test_two_replicas_pull_and_draw(run, policy, hub_of):
    hub = hub_of(spec_of(policy, run), 2)
    assert len({event.pid for event in hub.of(Started)}) == 2
    weights = PublishedWeights(weights_folder(run, hub.fleet.node(0)))
    weights.publish(3, tiny_model(0).named_parameters())
    names = list(TRAJECTORIES)
    for replica, part in ((0, names[:2]), (1, names[2:])):
        begin = {name: TRAJECTORIES[name] for name in part}
        hub.fleet.order(replica, Orders(pull="newest", settings=SETTINGS, begin=begin))
    hub.until(lambda: len(hub.ended) == len(TRAJECTORIES))
    assert tokens(hub.ended) == alone(policy)
    assert {sample.policy_version for sample in hub.ended.values()} == {3}
    assert {event.replica for event in hub.of(Reported) if event.report.ended} == {0, 1}
    before = len(hub.events)
    hub.until(lambda: {event.replica for event in hub.events[before:]} == {0, 1})  # idle, they report too


def test_a_killed_or_stopped_replica_is_replaced_and_harmless_when_it_wakes(policy, hub_of):
    hub = hub_of(spec_of(policy, pause_seconds=0.01), 1)
    hub.fleet.order(0, Orders(settings=LONG, begin=TRAJECTORIES))
    hub.until(lambda: any(event.report.new_tokens for event in hub.of(Reported)))
    os.kill(hub.of(Started)[0].pid, signal.SIGKILL)
    hub.until(lambda: hub.of(Died))
    (died,) = hub.of(Died)
    assert died.replica == 0 and set(died.lost) == set(TRAJECTORIES) - set(hub.ended)
    hub.until(lambda: len(hub.of(Started)) == 2)
    hub.events = hub.of(Started)[1:]
    hub.fleet.order(0, Orders(settings=SETTINGS, begin=TRAJECTORIES))
    hub.until(lambda: len(hub.ended) == len(TRAJECTORIES))
    assert tokens(hub.ended) == alone(policy)

    hub.events, hub.fleet.stalled_seconds = hub.of(Started), 5.0
    hub.fleet.order(0, Orders(settings=LONG, begin=TRAJECTORIES))
    hub.until(lambda: len([1 for event in hub.of(Reported) if event.report.new_tokens]) > 2)
    process = psutil.Process(hub.of(Started)[0].pid)
    process.suspend()
    hub.until(lambda: hub.of(Stalled))
    (stalled,) = hub.of(Stalled)
    assert "no report for" in stalled.reason and set(stalled.lost) == set(TRAJECTORIES) - set(hub.ended)
    before = len(hub.events)
    process.resume()
    hub.until(lambda: len(hub.of(Started)) == 2)
    hub.until(lambda: len(hub.events) > before + 3)
    after = [event for event in hub.events[before:] if isinstance(event, Reported)]
    assert not any(event.report.new_tokens or event.report.ended for event in after)
    assert_all_end([process])


def test_one_that_dies_again_and_again_ends_in_its_reason(run, monkeypatch):
    monkeypatch.setattr("stages.engines.replicas.fleet.MOST_RESTARTS", 1)
    fleet = Fleet(ReplicaSpec(broken_sampler, None), 1, 5.0, 0.2)
    with pytest.raises(ValueError, match="has not started"):
        fleet.order(0, Orders())
    with pytest.raises(FleetError, match=r"1 times in a row.*no such number"):
        while True:
            fleet.poll(1.0)
    fleet.close()


def test_an_error_of_the_user_is_not_tried_again(run):
    fleet = Fleet(ReplicaSpec(refused_sampler, None), 1, 5.0, 0.2)
    with pytest.raises(UserError, match=r"^sampler.max_sequences is too large: lower it$"):
        while True:
            fleet.poll(1.0)
    fleet.close()


def nodes(*resources):
    return [{"Alive": True, "Resources": one} for one in resources]


def test_replicas_that_do_not_fit_are_one_sentence():
    spec = ReplicaSpec(broken_sampler, None, memory_bytes=3 << 30)
    roomy = {"memory": float(7 << 30), "CPU": 4.0}
    check_room(spec, 4, nodes(roomy, roomy))
    with pytest.raises(UserError, match=r"5 replicas do not fit: each needs about 3.0 GiB.*count to 4"):
        check_room(spec, 5, nodes(roomy, roomy))
    with pytest.raises(UserError, match=r"has room for 2: lower"):
        check_room(ReplicaSpec(broken_sampler, None, cpus=3, memory_bytes=1), 3, nodes(roomy, roomy))


def test_gpus_are_whole_or_shared():
    wide = VLLM_SAMPLER.model_copy(update={"tensor_parallel": 2})
    assert gpus_each(TORCH_SAMPLER, 2, 1, 8) == 0
    assert gpus_each(VLLM_SAMPLER, 2, 1, 0) == 0
    assert gpus_each(VLLM_SAMPLER, 2, 1, 3) == 1
    assert gpus_each(VLLM_SAMPLER, 2, 1, 1) == pytest.approx(1 / 3)
    assert gpus_each(wide, 2, 1, 5) == 2
    with pytest.raises(UserError, match="do not fit 4 GPUs"):
        gpus_each(wide, 2, 1, 4)
