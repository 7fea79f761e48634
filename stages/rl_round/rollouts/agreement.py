"""A judge beside the rules: also for ranks and rounds that ask none, hence apart from what asks one."""

from __future__ import annotations

from collections.abc import Sequence

from stages.algorithms.answers.verdicts import Verdict


def agreement_metrics(pairs: Sequence[tuple[Verdict, Verdict]]) -> dict[str, float]:
    """How a judge's verdicts compare with those of the rules; empty when none was asked.

    Agreement is on correct or not, among those that both have decided.
    """
    decided = [pair for pair in pairs if not any(verdict.is_failure for verdict in pair)]
    correct = [tuple(verdict is Verdict.CORRECT for verdict in pair) for pair in decided]
    if not decided:
        return {}
    return {
        "verdict/rule_agreement_fraction": sum(one == other for one, other in correct) / len(correct),
        "verdict/false_correct_fraction": sum(one and not other for one, other in correct) / len(correct),
        "verdict/false_wrong_fraction": sum(other and not one for one, other in correct) / len(correct),
    }
