"""Random schedules of replicas, deaths, repack and training, on a fake clock."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.custom_functions import FunctionValue
from stages.rl_round.asynchronous.coordinator import Coordinator
from stages.rl_round.loop.round_log import RolloutLog
from stages.rl_round.methods import AllPrompts, NoPositiveResampling
from stages.rl_round.records import Problem
from tests.fakes.replica_schedules import Schedule, spans, through_json, token
from tests.fakes.rounds import ASYNCHRONOUS, NONE, settings

PROBLEMS = [Problem(f"p{number}", [1, 2, 3 + number], "7") for number in range(23)]
STEPS = 6
ALL = AllPrompts(kind="all")
UNSOLVED = NoPositiveResampling(kind="no_positive_resampling", pass_rate=0.9)


def coordinator(
    window,
    repack=True,
    written=None,
    replicas=3,
    share=1.0,
    dynamic=True,
    group_size=4,
    takes="when_empty",
    selection=ALL,
    **others,
):
    policy = {"kind": "best_fit", "every_seconds": 1.0, "batch_bound": 64} if repack else NONE
    loop = {"window": window, "replica_share": share, "takes_groups": takes, "repack": policy}
    sampling = {} if dynamic else {"dynamic_sampling": NONE}
    rl = settings(group_size=group_size, max_response_tokens=200, loop=ASYNCHRONOUS | loop, **sampling, **others)
    this_round = SimpleNamespace(
        name="rl_1",
        seed=1,
        params=rl,
        settings=SimpleNamespace(steps=STEPS, prompt_selection=selection),
        sampler_params=SimpleNamespace(max_sequences=1000, replicas=SimpleNamespace(count=replicas)),
        verifier_params=SimpleNamespace(abort_undecided_fraction=0.3),
        problems=PROBLEMS,
    )
    return Coordinator(this_round, rl.loop, (written if written is not None else []).append)


def schedule(core, seed, death_rate=0.0, signal=0.7, replicas=3, keep=8):
    generator = random.Random(seed)
    salt = generator.random()

    def length(name, version):
        # Heavy tail: the longest are ten times as long as the median.
        return max(1, min(200, int(random.Random(f"{salt} {name} {version}").lognormvariate(2.5, 0.99))))

    def is_right(name):
        has_signal = random.Random(f"{salt} {name[0]}").random() < signal
        return name[1] % 2 == 0 if has_signal else True

    return Schedule(core, generator, replicas, length, is_right, death_rate, keep)


def check_tokens(run):
    """Asserts that one version generated every trained response from its first token to its last."""
    for taken in run.trained:
        for group, number in zip(taken.batch.groups, taken.numbers, strict=True):
            for rollout in group.rollouts:
                ids, version = rollout.sample.token_ids, rollout.sample.policy_version
                member = ids[0] // 1024 // 64 % 64  # some may have failed for good
                assert ids == [token((number, member), version, place) for place in range(len(ids))]


def check_staleness(run, window):
    assert all(
        taken.step - rollout.sample.policy_version <= window
        for taken in run.trained
        for group in taken.batch.groups
        for rollout in group.rollouts
    )


@pytest.mark.parametrize("window", [0, 1, 2, 3, 4, None])
def test_random_schedules_keep_the_window_and_lose_nothing(window):
    for seed in range(10):
        core = coordinator(
            window,
            repack=seed % 2 == 0,
            share=[0.5, 1.0, 2.0][seed % 3],
            takes=["when_empty", "while_newest"][seed // 2 % 2],
        )
        run = schedule(core, seed, death_rate=[0.0, 0.02][seed % 4 == 3])
        run.run()
        check_tokens(run)
        assert [taken.step for taken in run.trained] == list(range(STEPS))
        assert all(len(taken.numbers) == 4 for taken in run.trained)
        if window is not None:
            check_staleness(run, window)
            assert run.longest_wait <= window + 1
        assert not core.groups, "nothing is carried: no group is begun that no step could train on"


def test_versions_that_are_lost_are_drawn_again_and_never_mixed():
    for seed in range(10):
        run = schedule(coordinator(2), seed, death_rate=0.05, keep=1)
        run.run()
        check_tokens(run)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("window", [0, 2])
def test_a_killed_hub_goes_on_from_its_journal(window, seed):
    """It uses the weights of the last checkpoint until the trainer has repeated the steps after it."""
    written, selection = [], [ALL, UNSOLVED][seed % 2]
    core = coordinator(window, written=written, selection=selection)
    first = schedule(core, seed)
    first.run(stop_after=random.Random(seed).randint(5, 400))
    finished = {(one.group, one.member) for one in written if type(one).__name__ == "Finished"}
    again = coordinator(window, written=written, selection=selection)
    taken = again.restore(through_json(written))
    assert again._cursor == core._cursor
    assert [one.numbers for one in taken] == [one.groups for one in written if type(one).__name__ == "Trained"]
    again.check_conservation()
    assert again.next_number == core.next_number
    assert {name for name, _ in again.pool.flights()}.isdisjoint(finished)
    second = schedule(again, seed)
    second.published, second.trained = [len(taken) // 2 * 2], taken
    marker = len(written)
    second.run()
    check_tokens(second)
    check_staleness(second, window)
    assert [one.step for one in second.trained] == list(range(STEPS))
    drawn_again = [one for one in written[marker:] if type(one).__name__ == "Finished"]
    assert finished.isdisjoint((one.group, one.member) for one in drawn_again)


@pytest.mark.parametrize("seed", range(3))
def test_solved_problems_are_not_issued_again(seed):
    """Compared with a count of the journal's records."""
    written = []
    schedule(coordinator(2, written=written, selection=UNSOLVED), seed, signal=0.3).run()
    problems, right, members, again = {}, {}, {}, 0
    for record in written:
        match type(record).__name__:
            case "Issued":
                done = [group for group, name in problems.items() if name == record.problem_id and members[group] == 4]
                again += bool(done)
                assert sum(right[group] for group in done) < 0.9 * 4 * len(done) or not done
                problems[record.group], right[record.group], members[record.group] = record.problem_id, 0, 0
            case "Finished":
                members[record.group] += 1
                right[record.group] += record.verdict is Verdict.CORRECT
    assert again and any(right[group] == 4 for group in problems)


@pytest.mark.parametrize("seed", range(6))
def test_what_an_environment_wrote_stays_marked_through_moves_deaths_and_a_kill(seed):
    """The replicas themselves compare the spans of every trajectory that they take over."""
    written = []
    first = schedule(coordinator(2, written=written), seed, death_rate=0.02)
    first.observes = True
    first.run(stop_after=200)
    again = coordinator(2, written=written)
    taken = again.restore(through_json(written))
    assert any(flight.observed for _, flight in again.pool.flights())
    second = schedule(again, seed)
    second.observes, second.published, second.trained = True, [len(taken) // 2 * 2], taken
    second.run()
    samples = [one.sample for taken in second.trained for group in taken.batch.groups for one in group.rollouts]
    assert all(one.episode.observed == spans(0, len(one.token_ids)) for one in samples)
    assert {one.episode.reward for one in samples} == {1 / 3}
    assert second.coordinator.trained_lengths.tokens == sum(one.policy_tokens for one in samples)


CUSTOM = {"reward": {"kind": "function", "file": "custom/mine.py", "name": "score"}}


def said_of(name):
    """Returns a value that float32 cannot hold, in two parts; one response in ten fails."""
    generator = random.Random(f"{name}")
    value = FunctionValue(0.0, {"a": generator.random(), "b": generator.random()})
    return {"": FunctionValue(fault="ValueError: no") if generator.random() < 0.1 else value}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("reward", [{}, CUSTOM], ids=["verdict", "custom"])
def test_rollouts_and_fates_are_written_again_from_the_journal(seed, reward, tmp_path):
    """Bit for bit: the files next to the journal need no other protection. Fates hold a custom reward completely."""
    written = []
    run = schedule(coordinator(2, written=written, **reward), seed, death_rate=0.02, keep=1)
    if reward:
        run.values = said_of
    run.run()
    taken = coordinator(2, written=written, **reward).restore(through_json(written))
    logs = []
    for name, batches in (("live", run.trained), ("restored", taken)):
        log = RolloutLog(SimpleNamespace(scratch=tmp_path / name, run=None))
        log.restore(one.batch for one in batches)
        logs.append(log)
    assert logs[0].kept() == logs[1].kept() and len(logs[0].kept()) == 2 * STEPS
    assert len(logs[1].frame()) == sum(len(group.rollouts) for one in taken for group in one.batch.groups) + sum(
        len(group.rollouts) for one in taken for group in one.batch.left_out
    )


def test_a_policy_that_gives_no_signal_still_ends_the_round():
    run = schedule(coordinator(1), seed=3, signal=0.0)
    run.run()
    assert [taken.numbers for taken in run.trained] == [()] * STEPS


def test_without_dynamic_sampling_every_group_is_trained_on():
    core = coordinator(2, dynamic=False)
    run = schedule(core, seed=4, signal=0.3)
    run.run()
    assert core.left_out.total() == 0
    assert sorted(number for taken in run.trained for number in taken.numbers) == list(range(4 * STEPS))
