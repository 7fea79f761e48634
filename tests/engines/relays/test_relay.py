"""Relays on the nodes of a real cluster (three raylets here): versions arrive complete, whatever fails."""

import importlib
import os
import signal
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from stages.engines.distributed.ray_session import ray_session, read_settings_again, session_token
from stages.engines.relays.published_weights import PublishedWeights, weights_folder
from stages.engines.relays.relay import Relay, RelayChain, start_relay
from stages.engines.replicas.fleet import Fleet, ReplicaSpec, Reported
from stages.engines.replicas.replica import Orders
from stages.engines.samplers.protocol import Trajectory
from stages.foundations.errors import UserError
from tests.fakes.faulty_relays import AlwaysDamaging, Damaging, NoRoom, Slow
from tests.fakes.processes import PATIENCE_SECONDS, assert_all_end, wait_until
from tests.fakes.stepping import SETTINGS, stepping_sampler
from tests.fakes.tiny_policy import tiny_model

CHUNK_BYTES = 100_000


def the_ray():
    """Returns the package. It reads its environment at its first import, and `cluster` sets the environment."""
    return importlib.import_module("ray")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Returns the name of the session's folders in memory and the ids of its three nodes."""
    patch = pytest.MonkeyPatch()
    for name, value in {
        "RETRACE_STATE": str(tmp_path_factory.mktemp("state")),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": session_token(),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_prestart_worker_first_driver": "0",
        "PYTHONPATH": os.getcwd(),
    }.items():
        patch.setenv(name, value)
    read_settings_again(the_ray())
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 4, "object_store_memory": 80 << 20, "include_dashboard": False}
    servers = Cluster(initialize_head=True, head_node_args=size)
    for _ in range(2):
        servers.add_node(num_cpus=4, object_store_memory=80 << 20)
    patch.setenv("RAY_ADDRESS", servers.address)
    try:
        with ray_session(1, packages=("pydantic",)) as run:
            yield run, [node["NodeID"] for node in the_ray().nodes()]
    finally:
        servers.shutdown()
        patch.undo()


@pytest.fixture
def chain_of(cluster):
    run, nodes = cluster
    chains = []

    def start(keep=3, stalled_seconds=120.0, over=nodes):
        chains.append(RelayChain(run, keep, stalled_seconds, has_guards=False))
        chains[-1].ensure(over)
        return chains[-1]

    yield start
    for chain in chains:
        chain.close()
    for node in nodes:
        weights = PublishedWeights(weights_folder(run, node))
        weights.prune(0)


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    return [(f"w{n}", torch.randn(200, 300, generator=generator)) for n in range(4)]


def publish(cluster, version, seed=None):
    run, nodes = cluster
    weights = PublishedWeights(weights_folder(run, nodes[0]), CHUNK_BYTES)
    weights.publish(version, tensors(version if seed is None else seed), {"seed": version})


def is_there(cluster, node, version, seed=None):
    metadata, named = PublishedWeights(weights_folder(cluster[0], node)).load(version)
    loaded = dict(named)
    expected = tensors(version if seed is None else seed)
    return metadata == {"seed": version} and all(torch.equal(loaded[name], tensor) for name, tensor in expected)


def poll_until(chain, condition):
    arrived = []

    def has_come():
        found = condition()
        arrived.extend([] if found else chain.poll())
        return found

    wait_until(has_come, told=chain.have)
    return arrived


def all_have(chain, versions):
    return lambda: [sorted(versions)] * 3 == list(chain.have.values())


def test_each_version_arrives_on_every_node_and_old_ones_go(cluster, chain_of):
    chain = chain_of(keep=2)
    for version in range(3):
        publish(cluster, version)
        chain.announce(version)
        arrived = poll_until(chain, lambda version=version: all(version in have for have in chain.have.values()))
        assert all(is_there(cluster, node, version) for node in cluster[1])
    poll_until(chain, all_have(chain, [1, 2]))
    received = {one.node: one.fetched.bytes for one in arrived if one.fetched}
    assert all(received[node] > 900_000 for node in cluster[1][1:]) and received[cluster[1][0]] == 0


def test_another_policy_under_the_same_number_replaces_it(cluster, chain_of):
    publish(cluster, 4, seed=0)
    chain = chain_of()
    chain.announce(4)
    poll_until(chain, all_have(chain, [4]))
    publish(cluster, 4, seed=1)
    chain.announce(4)
    poll_until(chain, lambda: all(is_there(cluster, node, 4, seed=1) for node in cluster[1]))


def relay_of(cluster, place, kind=Relay, keep=3):
    run, nodes = cluster
    return start_relay(nodes[place], run, keep, False, kind)


@pytest.fixture(scope="module")
def master(cluster):
    """Returns a healthy relay on the trainer's node; it and `last` keep nothing between tests."""
    relay = relay_of(cluster, 0)
    the_ray().get(relay.have.remote())  # one that has not started yet would pass for silent
    return relay


@pytest.fixture(scope="module")
def last(cluster):
    return relay_of(cluster, 2)


@pytest.mark.parametrize(("kind", "damaged", "passed_over"), [(Damaging, 2, 0), (AlwaysDamaging, 3, 1)])
def test_a_damaged_chunk_is_asked_for_again(cluster, chain_of, master, last, kind, damaged, passed_over):
    publish(cluster, 7)
    middle = relay_of(cluster, 1, kind)
    the_ray().get(middle.fetch.remote(7, [master]))
    fetched = the_ray().get(last.fetch.remote(7, [middle, master]), timeout=PATIENCE_SECONDS)
    assert (fetched.damaged, fetched.passed_over) == (damaged, passed_over)
    assert is_there(cluster, cluster[1][2], 7)


@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL])
def test_a_silent_relay_is_passed_over(cluster, chain_of, master, last, sent):
    publish(cluster, 8)
    middle = relay_of(cluster, 1)
    the_ray().get(middle.fetch.remote(8, [master]))
    os.kill(the_ray().get(middle.process.remote()), sent)
    fetched = the_ray().get(last.fetch.remote(8, [middle, master]), timeout=PATIENCE_SECONDS)
    # Ray restarts a killed relay, which may be back before it is skipped. A stopped relay never is.
    assert fetched.passed_over in ((1,) if sent == signal.SIGSTOP else (0, 1))
    assert is_there(cluster, cluster[1][2], 8)
    the_ray().kill(middle)


def test_a_relay_passes_on_what_it_is_still_receiving(cluster, chain_of, last):
    publish(cluster, 9)
    slow, middle = relay_of(cluster, 0, Slow), relay_of(cluster, 1)
    digest = the_ray().get(slow.have.remote())[9]
    receiving = middle.fetch.remote(9, [slow])
    wait_until(lambda: the_ray().get(middle.chunk.remote(9, digest, (0, 0))) is not None)
    assert not the_ray().wait([receiving], timeout=0)[0]
    passing = last.fetch.remote(9, [middle, slow])
    wait_until(lambda: the_ray().get(last.chunk.remote(9, digest, (0, 0))) is not None)
    slow.release.remote()
    fetched = the_ray().get(passing, timeout=PATIENCE_SECONDS)
    assert fetched.passed_over == 0 and is_there(cluster, cluster[1][2], 9)


def test_a_killed_relay_reads_its_folder_again(cluster, chain_of):
    chain = chain_of()
    publish(cluster, 1)
    chain.announce(1)
    poll_until(chain, all_have(chain, [1]))
    for node in cluster[1]:
        slot = chain._slots[node]
        os.kill(the_ray().get(slot.actor.process.remote()), signal.SIGKILL)
    publish(cluster, 2)
    chain.announce(2)
    poll_until(chain, all_have(chain, [1, 2]))
    assert all(is_there(cluster, node, version) for node in cluster[1] for version in (1, 2))


def test_a_stopped_relay_is_restarted(cluster, chain_of):
    chain = chain_of(stalled_seconds=5.0)
    publish(cluster, 1)
    chain.announce(1)
    poll_until(chain, all_have(chain, [1]))
    process = psutil.Process(the_ray().get(chain._slots[cluster[1][1]].actor.process.remote()))
    process.suspend()
    publish(cluster, 2)
    chain.announce(2)
    poll_until(chain, all_have(chain, [1, 2]))
    assert_all_end([process])


def test_a_version_that_nobody_has_is_tried_again(cluster, chain_of):
    chain = chain_of()
    chain.announce(5)
    failed = []
    while not failed:
        failed = [one.failed for one in chain.poll() if one.fetched is None]
        time.sleep(0.02)
    assert "version 5" in failed[0]
    publish(cluster, 5)
    poll_until(chain, all_have(chain, [5]))


def test_replicas_on_every_node_pull_from_their_own(cluster, chain_of, policy):
    chain = chain_of()
    fleet = Fleet(ReplicaSpec(partial(stepping_sampler, policy), cluster[0]), 3, 120.0, 0.2)
    with closing(fleet):
        while len(fleet.started()) < 3:
            fleet.poll(1.0)
        assert {fleet.node(replica) for replica in range(3)} == set(cluster[1])
        weights = PublishedWeights(weights_folder(cluster[0], cluster[1][0]), CHUNK_BYTES)
        weights.publish(3, tiny_model(seed=2).named_parameters())
        chain.announce(3)
        poll_until(chain, all_have(chain, [3]))
        for replica in range(3):
            begin = {replica: Trajectory([5, 6], seed=1)}
            fleet.order(replica, Orders(pull=3, under=3, settings=SETTINGS, begin=begin))
        ended = {}
        while len(ended) < 3:
            for event in fleet.poll(1.0):
                ended |= event.report.ended if isinstance(event, Reported) else {}
    assert len({tuple(sample.token_ids) for sample in ended.values()}) == 1
    assert {sample.policy_version for sample in ended.values()} == {3}


def test_a_node_without_room_says_so(cluster, chain_of, master):
    publish(cluster, 6)
    with pytest.raises(UserError, match="has no room for 1 MiB"):
        the_ray().get(relay_of(cluster, 1, NoRoom).fetch.remote(6, [master]))
    assert not list(Path(weights_folder(cluster[0], cluster[1][1])).glob("*6*"))


def test_a_cluster_without_a_package_is_one_sentence(cluster):
    from stages.engines.distributed.ray_session import _require

    with pytest.raises(UserError, match=r"of the Ray cluster lacks no_such_package: install requirements.lock"):
        _require(the_ray(), ("pydantic", "no_such_package"))
