"""A round that cannot learn says so while it runs, with what to change; one that can stays silent."""

import re

import pytest

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import Sample, StopReason
from stages.rl_round.loop.round_log import SignalWatch
from stages.rl_round.records import Group, Rollout


def group(verdicts, stop=StopReason.END_OF_SEQUENCE):
    kinds = {"c": Verdict.CORRECT, "w": Verdict.WRONG, "u": Verdict.UNPARSED}
    sample = Sample([5], [-0.5], stop, 0)
    return Group("p", [1], tuple(Rollout(sample, "", kinds[verdict], 0.0) for verdict in verdicts))


@pytest.mark.parametrize(
    ("drawn", "told"),
    [
        ([group("cccc")] * 3 + [group("wwww")], "75% all right.*too easy.*prompt_selection"),
        ([group("wwww")] * 4, "0% all right.*too hard.*sft.steps.*rl.group_size"),
        (
            [group("uuuu", StopReason.MAX_TOKENS)] * 4,
            "100% of responses cut off, 100% without an answer.*rl.max_response_tokens",
        ),
    ],
)
def test_three_steps_in_vain_are_told_with_the_remedy(drawn, told):
    watch = SignalWatch()
    assert watch.see(drawn) is None and watch.see(drawn) is None
    assert re.search(f"for 3 steps.*{told}", watch.see(drawn))


def test_it_is_told_again_when_the_steps_have_doubled_and_forgotten_with_the_first_signal():
    watch, nothing = SignalWatch(), [group("wwww")]
    told = [watch.see(nothing) is not None for _ in range(12)]
    assert [step for step, is_told in enumerate(told, start=1) if is_told] == [3, 6, 12]
    assert watch.see([group("cw"), *nothing]) is None
    assert [watch.see(nothing) is not None for _ in range(3)] == [False, False, True]


def test_a_step_that_drew_nothing_does_not_count():
    watch, nothing = SignalWatch(), [group("wwww")]
    for drawn in (nothing, [], nothing, []):
        assert watch.see(drawn) is None
    assert watch.see(nothing)
