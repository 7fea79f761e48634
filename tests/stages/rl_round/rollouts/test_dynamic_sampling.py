"""Dynamic sampling: no finished group is thrown away, none waits too long."""

import pytest

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import Sample, StopReason
from stages.rl_round.drawing import DrawState, draw_batch, draw_size, problems_in_order, slice_problems
from stages.rl_round.methods import DynamicSampling, NoDynamicSampling, ProblemSlice
from stages.rl_round.records import Group, Problem, Rollout

SAMPLING = DynamicSampling(kind="dynamic", max_draws=3, max_staleness=1)


def group(name, verdicts="cw", version=0):
    kinds = {"c": Verdict.CORRECT, "w": Verdict.WRONG, "u": Verdict.UNPARSED, "t": Verdict.TIMED_OUT}
    sample = Sample([5], [-0.5], StopReason.END_OF_SEQUENCE, version)
    return Group(name, [1], tuple(Rollout(sample, "", kinds[v], 0.0) for v in verdicts))


@pytest.mark.parametrize(
    ("verdicts", "has_signal"),
    [
        ("cw", True),
        ("cu", True),
        ("cc", False),
        ("ww", False),
        ("uu", False),
        ("ct", False),
        ("wt", False),
        ("cwt", True),
    ],
)
def test_signal_needs_both_outcomes_among_decided_rollouts(verdicts, has_signal):
    assert group("a", verdicts).has_signal == has_signal


def scripted(*draws):
    """A draw function that hands out the given groups and records what it was asked for."""
    asked = []

    def draw(first, count):
        asked.append((first, count))
        return list(draws[len(asked) - 1])

    return draw, asked


def test_draws_go_on_until_the_batch_is_full_and_surplus_waits():
    state = DrawState()
    draw, asked = scripted([group("a"), group("b", "cc"), group("c", "ww")], [group("d"), group("e"), group("f")])
    batch = draw_batch(SAMPLING, 3, 0, state, draw)
    assert [g.problem_id for g in batch.groups] == ["a", "d", "e"]
    assert [g.problem_id for g in state.carried] == ["f"]
    assert [g.problem_id for g in batch.left_out] == ["b", "c"]
    assert asked == [(0, 3), (3, 6)]  # two are missing and one of three had signal: 2 / (1/3)
    assert state.cursor == 9 and state.signal_fraction == pytest.approx(4 / 6)


def test_without_dynamic_sampling_the_share_with_signal_is_told_all_the_same():
    draw, _ = scripted([group("a"), group("b", "cc"), group("c", "ww"), group("d", "ww")])
    state = DrawState()
    batch = draw_batch(NoDynamicSampling(kind="none"), 4, 0, state, draw)
    assert batch.signal_fraction == 0.25 and len(batch.groups) == 4 and not batch.left_out


def test_surplus_is_used_first_and_left_out_when_stale():
    state = DrawState(carried=[group("old", version=3), group("young", version=4)])
    draw, asked = scripted([group("new", version=5)])
    batch = draw_batch(SAMPLING, 2, 5, state, draw)
    assert [g.problem_id for g in batch.groups] == ["young", "new"]
    assert (batch.too_stale, [g.problem_id for g in batch.left_out]) == (1, ["old"])
    assert asked == [(0, 1)]


def test_a_batch_filled_by_surplus_draws_nothing():
    state = DrawState(carried=[group("a"), group("b"), group("c")])
    draw, asked = scripted()
    assert len(draw_batch(SAMPLING, 2, 0, state, draw).groups) == 2
    assert asked == [] and [g.problem_id for g in state.carried] == ["c"]


def test_draws_are_bounded():
    draw, asked = scripted([group("a", "cc")], [group("b", "ww")], [group("c", "cc")])
    batch = draw_batch(SAMPLING, 1, 0, DrawState(), draw)
    assert (batch.groups, len(asked), batch.draws) == ([], 3, 3)


def test_without_dynamic_sampling_every_group_is_trained_on():
    state = DrawState()
    draw, _ = scripted([group("a", "cc"), group("b", "cw")])
    batch = draw_batch(NoDynamicSampling(kind="none"), 2, 0, state, draw)
    assert [g.problem_id for g in batch.groups] == ["a", "b"] and state.cursor == 2


def test_a_draw_is_at_most_four_times_what_is_missing():
    assert [draw_size(10, fraction) for fraction in (1.0, 0.5, 0.25, 0.0)] == [10, 20, 40, 40]


def test_slices_are_disjoint_and_cover_all():
    problems = [Problem(str(i), [1], "1") for i in range(10)]
    parts = [slice_problems(problems, ProblemSlice(index=i, count=3), seed=4) for i in range(3)]
    names = [problem.problem_id for part in parts for problem in part]
    assert sorted(names) == sorted(str(i) for i in range(10))
    assert names != [str(i) for i in range(10)]


def test_every_problem_is_drawn_once_before_any_is_drawn_again_and_the_second_draw_is_told():
    problems = [Problem(str(i), [1], "1") for i in range(5)]
    draws = problems_in_order(problems, 0, 12, 0, "rl_1")
    for number in (0, 1):
        part = draws[5 * number : 5 * number + 5]
        assert sorted(one.problem.problem_id for one in part) == ["0", "1", "2", "3", "4"]
        assert {one.number for one in part} == {number}
    assert draws[3:8] == problems_in_order(problems, 3, 5, 0, "rl_1")
    assert [one.number for one in draws[10:]] == [2, 2]


def test_a_group_of_several_versions_is_as_stale_as_its_oldest_sample():
    old, new = group("a", "c", version=3).rollouts, group("a", "w", version=5).rollouts
    state = DrawState(carried=[Group("a", [1], (*new, *old))])
    draw, _ = scripted([group("b", version=5)])
    assert draw_batch(SAMPLING, 1, 5, state, draw).too_stale == 1
