"""The majority vote of a group as the reward (TTRL)."""

import itertools
import json
import random
from collections import Counter

import pytest

from stages.__main__ import main
from stages.engines.samplers.protocol import Sample, StopReason
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.tables import ROLLOUT, read_table
from stages.rl_round.drawing import majority, votes
from tests.fakes.rounds import (
    ASYNCHRONOUS,
    MODEL,
    NONE,
    assert_replayed,
    assert_same,
    copied,
    curve,
    kill_after_three_steps,
    replay_params,
    settings,
)
from tests.fakes.taught_policy import PARAMS, PROBLEMS, rl_flags, write_params

VOTED = {
    "rl.dynamic_sampling": NONE,
    "rl.overlong": NONE,
    "rl.reward": {"kind": "majority_vote"},
    "rl_rounds.rl_1.steps": 5,
}


@pytest.mark.parametrize(
    ("answers", "equal", "expected"),
    [
        ("aab", set(), [True, True, False]),
        ("abb", {("a", "b")}, [True, True, True]),
        ("abcc", {("a", "b")}, [True, True, False, False]),  # a tie: the set of the earliest answer
        ("cabb", {("a", "b")}, [False, True, True, True]),
        ("abc", {("a", "b"), ("b", "c")}, [True, True, False]),  # c is compared with a, not with b
        ([None, "a", None], set(), [False, True, False]),
        ([None, None], set(), [False, False]),
    ],
)
def test_majority_by_hand(answers, equal, expected):
    assert majority(list(answers), equal) == expected


@pytest.mark.parametrize("seed", range(20))
def test_majority_is_the_most_common_class_of_an_equivalence(seed):
    """Texts are equal when their numbers are: a class is then a remainder, and `Counter` keeps the first of a tie."""
    rng = random.Random(seed)
    answers = [rng.choice([None, *map(str, range(9))]) for _ in range(rng.randrange(1, 12))]
    equal = {pair for pair in itertools.permutations(map(str, range(9)), 2) if int(pair[0]) % 3 == int(pair[1]) % 3}
    remainders = [None if one is None else int(one) % 3 for one in answers]
    counted = Counter(one for one in remainders if one is not None).most_common(1)
    chosen = counted[0][0] if counted else "nobody"
    assert majority(answers, equal) == [one == chosen for one in remainders]


def test_the_verifier_compares_the_answers_of_each_group():
    groups = [
        [r"\boxed{\frac{1}{2}}", r"It is \boxed{0.5}.", r"\boxed{2}", "2 and 2 and 2"],  # the last marks no answer
        [r"\boxed{2}", r"\boxed{7}", r"The answer is 7", r"The answer is 2"],  # the last is cut off
    ]
    stops = [StopReason.END_OF_SEQUENCE] * 7 + [StopReason.MAX_TOKENS]
    samples = [Sample([5], [-1.0], stop, 0) for stop in stops]
    with Verifier(VerifierParams.model_validate(PARAMS["verifier"])) as verifier:
        found = votes(samples, [text for group in groups for text in group], 4, verifier)
    assert [one[""].value for one in found] == [1, 1, 0, 0, 0, 1, 1, 0]


def test_a_round_without_gold_answers_goes_on_from_its_checkpoint_and_replays(taught, tmp_path, monkeypatch):
    params = write_params(tmp_path / "params.yaml", VOTED)
    main(rl_flags(taught, params, tmp_path / "whole"))
    frame, rows = read_table(tmp_path / "whole" / "rl_1.parquet", ROLLOUT), curve(tmp_path / "whole")
    gold = {f"p{number}": answer for number, (_, answer) in enumerate(PROBLEMS)}
    for row, (_, step) in zip(rows, frame.groupby("step"), strict=True):
        ratios, right = [], []
        for start in range(0, len(step), 8):
            group = step.iloc[start : start + 8]
            # The policy writes nothing but one box, or rubbish.
            digits = group["response"].str.extract(r"^[^{}]*\\boxed\{([0-9])\}$")[0]
            counted = Counter(digits.dropna()).most_common(1)
            answer = counted[0][0] if counted else ""
            assert group["reward"].tolist() == [float(one == answer) for one in digits]
            ratios.append(float((digits == answer).mean()))
            right.append(answer == gold[group["problem_id"].iloc[0]])
        assert row["vote/majority_ratio"] == pytest.approx(sum(ratios) / 4)
        assert row["vote/label_accuracy"] == pytest.approx(sum(right) / 4)
    assert max(row["optim/gradient_norm"] for row in rows) > 0
    metrics = json.loads((tmp_path / "whole" / "rl_1.json").read_text())
    assert metrics["vote/label_accuracy_last"] == rows[-1]["vote/label_accuracy"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_after_three_steps(patch)
        main(rl_flags(taught, params, tmp_path / "resumed"))
    main(rl_flags(taught, params, tmp_path / "resumed"))
    assert_same(tmp_path / "resumed", tmp_path / "whole")
    again = replay_params(tmp_path, VOTED, copied(tmp_path / "whole", tmp_path / "kept"))
    main(rl_flags(taught, again, tmp_path / "replayed"))
    assert_replayed(tmp_path / "replayed", tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"verifier": MODEL}, "compares the answers of a group by rules: set verifier.kind rule"),
        ({"loop": ASYNCHRONOUS}, "needs a whole group, and loop.kind asynchronous .* set loop.kind synchronous"),
    ],
)
def test_who_cannot_count_votes_is_refused(changes, told):
    with pytest.raises(ValueError, match=told):
        settings(reward={"kind": "majority_vote"}, overlong=NONE, **changes)
