"""Sampling: which problems, how their groups are sampled, and which groups form a batch."""

import json
from contextlib import closing
from types import SimpleNamespace

import pytest

from stages.__main__ import main
from stages.algorithms.answers.verdicts import Verdict
from stages.engines.policies.tokenizers import load_tokenizer
from stages.engines.samplers.build import DrawingShare
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.engines.trainers.one_rank import OneRank
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.errors import UserError
from stages.foundations.tables import ROLLOUT, read_table
from stages.rl_round.drawing import (
    DrawState,
    draw_batch,
    draw_groups,
    draw_size,
    make_group,
    sampling_settings,
    score_samples,
    trajectories_of,
)
from stages.rl_round.methods import (
    AllPrompts,
    DynamicSampling,
    NoDynamicSampling,
    NoPositiveResampling,
    PassRateSelection,
    ProblemSlice,
)
from stages.rl_round.problem_order import ProblemCursor, ProblemDraw, problems_at, slice_problems
from stages.rl_round.prompt_selection import (
    PassCount,
    count_passes,
    delete_pass_counts,
    select_by_pass_rate,
    selection_metrics,
)
from stages.rl_round.records import Group, Problem, pack_groups, unpack_groups
from tests.engines.test_pieces import cut, flip, lose
from tests.fakes.rounds import group, rollout, settings
from tests.fakes.taught_policy import PARAMS, rl_flags, write_params
from tests.fakes.tiny_policy import write_tiny_policy

SAMPLING = DynamicSampling(kind="dynamic", max_draws=3, max_staleness=1)


@pytest.mark.parametrize(
    ("verdicts", "has_signal"),
    [*((mixed, True) for mixed in ("cw", "cu", "cwt")), *((one, False) for one in ("cc", "ww", "uu", "ct", "wt"))],
)
def test_signal_needs_both_outcomes_among_decided_rollouts(verdicts, has_signal):
    assert group(verdicts).has_signal == has_signal


def test_a_reward_by_length_gives_groups_of_one_verdict_no_signal():
    """Rewards of -10 to -3 for wrong responses of different lengths would make length the whole gradient."""

    def shaped(*verdicts):
        rollouts = (rollout([5] * (n + 1), verdict, n - 10.0) for n, verdict in enumerate(verdicts))
        return Group("p", [1], tuple(rollouts)).has_signal

    right, wrong, undecided = Verdict.CORRECT, Verdict.WRONG, Verdict.TIMED_OUT
    assert not shaped(*[wrong] * 8) and not shaped(*[right] * 8)
    assert shaped(*[wrong] * 7, right) and shaped(right, *[wrong] * 6, undecided)
    assert not shaped(*[right] * 7, undecided)


def scripted(*draws):
    """Returns a draw function that returns the given groups, and the list of its requests."""
    asked = []

    def draw(count):
        asked.append(count)
        return list(draws[len(asked) - 1])

    return draw, asked


def test_draws_go_on_until_the_batch_is_full_and_surplus_waits():
    state = DrawState()
    first = [group("cw", "a"), group("cc", "b"), group("ww", "c")]
    draw, asked = scripted(first, [group("cw", name) for name in "def"])
    batch = draw_batch(SAMPLING, 3, 0, state, draw)
    assert [g.problem_id for g in batch.groups] == ["a", "d", "e"]
    assert [g.problem_id for g in state.carried] == ["f"]
    assert [g.problem_id for g in batch.left_out] == ["b", "c"]
    assert asked == [3, 6]  # two are missing and one of three had signal: 2 / (1/3)
    assert state.signal_fraction == pytest.approx(4 / 6)


def test_without_dynamic_sampling_every_group_is_trained_on_and_the_share_with_signal_is_told_all_the_same():
    draw, _ = scripted([group("cw", "a"), group("cc", "b"), group("ww", "c"), group("ww", "d")])
    batch = draw_batch(NoDynamicSampling(kind="none"), 4, 0, DrawState(), draw)
    assert [g.problem_id for g in batch.groups] == ["a", "b", "c", "d"]
    assert batch.signal_fraction == 0.25 and not batch.left_out


def test_surplus_is_used_first_and_left_out_when_stale():
    state = DrawState(carried=[group("cw", "old", version=3), group("cw", "young", version=4)])
    draw, asked = scripted([group("cw", "new", version=5)])
    batch = draw_batch(SAMPLING, 2, 5, state, draw)
    assert [g.problem_id for g in batch.groups] == ["young", "new"]
    assert (batch.too_stale, [g.problem_id for g in batch.left_out]) == (1, ["old"])
    assert asked == [1]


def test_a_batch_filled_by_surplus_draws_nothing():
    state = DrawState(carried=[group("cw", name) for name in "abc"])
    draw, asked = scripted()
    assert len(draw_batch(SAMPLING, 2, 0, state, draw).groups) == 2
    assert asked == [] and [g.problem_id for g in state.carried] == ["c"]


def test_draws_are_bounded_in_number_and_size():
    draw, asked = scripted([group("cc", "a")], [group("ww", "b")], [group("cc", "c")])
    batch = draw_batch(SAMPLING, 1, 0, DrawState(), draw)
    assert (batch.groups, len(asked), batch.draws) == ([], 3, 3)
    # At most four times the number of missing groups.
    assert [draw_size(10, fraction) for fraction in (1.0, 0.5, 0.25, 0.0)] == [10, 20, 40, 40]


def test_slices_are_disjoint_and_cover_all():
    problems = [Problem(str(i), [1], "1") for i in range(10)]
    parts = [slice_problems(problems, ProblemSlice(index=i, count=3), seed=4) for i in range(3)]
    names = [problem.problem_id for part in parts for problem in part]
    assert sorted(names) == sorted(str(i) for i in range(10))
    assert names != [str(i) for i in range(10)]


def test_every_problem_is_drawn_once_before_any_is_drawn_again_and_the_second_draw_is_told():
    problems = [Problem(str(i), [1], "1") for i in range(5)]
    draws = problems_at(problems, range(12), 0, "rl_1")
    for number in (0, 1):
        part = draws[5 * number : 5 * number + 5]
        assert sorted(one.problem.problem_id for one in part) == ["0", "1", "2", "3", "4"]
        assert {one.number for one in part} == {number}
    assert draws[3:8] == problems_at(problems, range(3, 8), 0, "rl_1")
    assert [one.number for one in draws[10:]] == [2, 2]


def names_drawn(cursor, count, problems):
    draws = problems_at(problems, cursor.advance(count, problems, 0, "rl_1"), 0, "rl_1")
    return [(one.problem.problem_id, one.number) for one in draws]


def test_a_solved_problem_does_not_come_again_and_the_others_keep_their_order():
    problems = [Problem(name, [1], "1") for name in "abcd"]
    selection = NoPositiveResampling(kind="no_positive_resampling", pass_rate=0.75)
    cursor, plain = ProblemCursor(), ProblemCursor()
    order = names_drawn(plain, 20, problems)
    assert names_drawn(cursor, 4, problems) == order[:4]
    # b: 3 of 4 decided are right; a: 5 of 8; c: undecided only; d: 2 of 3 until its second draw.
    cursor.count([group("cccwt", "b"), group("cccww", "a"), group("tt", "c"), group("ccw", "d")], selection)
    cursor.count([group("ccw", "a")], selection)
    assert cursor.solved == {"b": 0.75} and cursor.passes == {"a": [5, 8], "c": [0, 0], "d": [2, 3]}
    assert names_drawn(cursor, 3, problems) == [one for one in order[4:8] if one[0] != "b"]
    cursor.count([group("c", "d"), group("wwww", "b")], selection)  # what is solved stays solved
    assert cursor.solved == {"b": 0.75, "d": 0.75}
    assert names_drawn(cursor, 2, problems) == [one for one in order[8:12] if one[0] not in "bd"]
    cursor.count([group("c" * 99, name) for name in "ac"], selection)
    place = cursor.place
    assert len(cursor.solved) == 4 and names_drawn(cursor, 4, problems) == order[place : place + 4]
    plain.count([group("cccc", "b")], AllPrompts(kind="all"))
    assert not plain.solved and not plain.passes


def test_a_group_of_several_versions_is_as_stale_as_its_oldest_sample():
    old, new = group("c", "a", version=3).rollouts, group("w", "a", version=5).rollouts
    state = DrawState(carried=[Group("a", [1], (*new, *old))])
    draw, _ = scripted([group("cw", "b", version=5)])
    assert draw_batch(SAMPLING, 1, 5, state, draw).too_stale == 1


DRAWS = [ProblemDraw(Problem(name, prompt, "7"), 0) for name, prompt in (("a", [36, 80]), ("b", [81]))]


def test_identity_alone_decides_the_random_numbers():
    first = trajectories_of(DRAWS[0], 4, 0, "rl_1")
    assert len({one.seed for one in first}) == 4
    assert first[:2] == trajectories_of(DRAWS[0], 2, 0, "rl_1")  # a larger group begins with the smaller one
    others = [
        trajectories_of(DRAWS[1], 4, 0, "rl_1"),
        trajectories_of(ProblemDraw(DRAWS[0].problem, 1), 4, 0, "rl_1"),
        trajectories_of(DRAWS[0], 4, 0, "rl_2"),
        trajectories_of(DRAWS[0], 4, 1, "rl_1"),
    ]
    for other in others:
        assert not {one.seed for one in first} & {one.seed for one in other}


@pytest.fixture
def sampler(tmp_path):
    folder = write_tiny_policy(tmp_path / "policy", initializer_range=0.2)
    with closing(TorchSampler.from_folder(TorchSamplerParams.model_validate(PARAMS["sampler"]), folder)) as one:
        yield one


def test_steps_taken_one_by_one_give_the_groups_of_all_three_together(sampler, tmp_path):
    """Steps as an asynchronous loop takes them: each response is scored when it ends, in any order."""
    tokenizer = load_tokenizer(tmp_path / "policy")
    with Verifier(VerifierParams.model_validate(PARAMS["verifier"])) as verifier:
        together = draw_groups(DRAWS, sampler, verifier, tokenizer, settings(), 0, "rl_1")
        alone = []
        for draw in reversed(DRAWS):
            trajectories = trajectories_of(draw, settings().group_size, 0, "rl_1")
            rollouts = {
                index: score_samples(["7"], [sample], verifier, tokenizer, settings())[0]
                for index, sample in sampler.stream(trajectories, sampling_settings(settings()))
            }
            alone.append(make_group(draw, [rollouts[index] for index in range(settings().group_size)]))
    for one, other in zip(together, reversed(alone), strict=True):
        assert one.problem_id == other.problem_id
        for own, twin in zip(one.rollouts, other.rollouts, strict=True):
            assert own.sample.token_ids == twin.sample.token_ids
            assert (own.verdict, own.reward) == (twin.verdict, twin.reward)
        assert unpack_groups(pack_groups([one])) == [one]


PROBLEMS = [Problem(str(number), [1], "1") for number in range(6)]
COUNTS = [PassCount(0, 4), PassCount(1, 4), PassCount(2, 4), PassCount(3, 4), PassCount(4, 4), PassCount(0, 0)]
SELECTION = PassRateSelection(kind="pass_rate", samples=4, min=0.1, max=0.75)


def test_problems_of_middling_difficulty_are_kept_in_their_order():
    kept = select_by_pass_rate(PROBLEMS, COUNTS, SELECTION, 3)
    assert [problem.problem_id for problem in kept] == ["1", "2", "3"]


def test_the_histogram_and_the_kept_share():
    metrics = selection_metrics(COUNTS, 3)
    assert metrics["selection/kept_fraction"] == 0.5 and metrics["selection/pass_rate_mean"] == 0.5
    shares = {name: value for name, value in metrics.items() if name.startswith("selection/pass_rate_")}
    del shares["selection/pass_rate_mean"]
    filled = {f"selection/pass_rate_{name}_fraction" for name in ("0", "to_25", "to_50", "to_75", "100")}
    assert shares == {name: pytest.approx(1 / 6 if name in filled else 0) for name in shares}
    assert len(shares) == 6 and filled < set(shares)
    assert sum(shares.values()) + metrics["selection/undecided_fraction"] == pytest.approx(1)


def test_too_few_problems_are_told_with_the_histogram():
    with pytest.raises(
        UserError, match=r"keeps 3 of 6 problems .*fewer than rl.problems_per_step 4: widen min and max"
    ):
        select_by_pass_rate(PROBLEMS, COUNTS, SELECTION, 4)


def test_what_was_counted_is_not_sampled_again(tmp_path, monkeypatch):
    asked = []

    def draw_groups(draws, params, *seed_path, group_size):
        problems = [draw.problem for draw in draws]
        asked.append(([problem.problem_id for problem in problems], group_size, seed_path))
        if len(asked) == 2 and not (tmp_path / "second").exists():
            (tmp_path / "second").touch()
            raise KeyboardInterrupt
        return [group("cwt", problem.problem_id) for problem in problems]

    drawing = SimpleNamespace(draw=draw_groups, share=DrawingShare(OneRank()))
    monkeypatch.setattr("stages.rl_round.prompt_selection.PROBLEMS_AT_ONCE", 4)

    def count():
        return count_passes(PROBLEMS, 3, settings(), drawing, tmp_path, 0, "rl_1")

    with pytest.raises(KeyboardInterrupt):
        count()
    assert count() == [PassCount(1, 2)] * 6
    assert [names for names, _, _ in asked] == [["0", "1", "2", "3"], ["4", "5"], ["4", "5"]]
    assert {seed for _, _, seed in asked} == {(0, "rl_1", "pass_rates")} and asked[0][1] == 3
    count()
    assert len(asked) == 3
    for damage in (lose, flip, cut):
        [piece] = tmp_path.glob("pass_counts-0.json")
        damage(piece)
        assert count() == [PassCount(1, 2)] * 6 and asked.pop()[0] == ["0", "1", "2", "3"]
    assert len(asked) == 3
    delete_pass_counts(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["second"]


def test_a_round_draws_from_the_selected_problems_only(taught, tmp_path):
    selection = {"kind": "pass_rate", "samples": 8, "min": 0.05, "max": 0.6}
    changes = {
        "rl_rounds.rl_1.prompt_selection": selection,
        "rl_rounds.rl_1.steps": 2,
        "rl.problems_per_step": 1,
        "rl.dynamic_sampling": {"kind": "none"},
    }
    flags = rl_flags(taught, write_params(tmp_path / "params.yaml", changes), tmp_path)
    main(flags)
    metrics = json.loads((tmp_path / "rl_1.json").read_text())
    drawn = set(read_table(tmp_path / "rl_1.parquet", ROLLOUT)["problem_id"])
    assert metrics["selection/problems"] == 6
    assert 0 < metrics["selection/kept"] <= 6 and len(drawn) <= metrics["selection/kept"]
