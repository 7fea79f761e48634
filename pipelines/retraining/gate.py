"""The gate: whether a retrained policy may take the champion's place. A pure function of paired measurements.

A candidate is promoted only when all of these hold, on the problems that both have been measured on:

1. it is better in accuracy: the 95% interval of its gain lies above 0 (stages/algorithms/estimators.py);
2. on no benchmark does its interval lie below 0;
3. on the problems that neither policy's training data contains, its accuracy does not fall;
4. its share of undecided verdicts does not rise: a policy must not gain by answers that cannot be judged.

Each retraining is one more draw from the noise: a candidate that is no better passes rule 1 once in forty times.

`decision_page` and `decision_sentence` are the decision in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pipelines.retraining.champion import Champion
from stages.algorithms.estimators import PairedDifference, compare_paired

ROUNDING = 1e-9
"""Means of equal shares may differ by this in the last bits."""


@dataclass(frozen=True)
class Pair:
    """One benchmark problem, measured with both policies: shares of its responses, from 0 to 1."""

    benchmark: str
    champion: float
    """Share of correct responses."""
    candidate: float
    champion_undecided: float
    candidate_undecided: float
    is_clean: bool
    """False when either policy was trained on the problem."""


@dataclass(frozen=True)
class Decision:
    """What the gate says, and from which numbers. `reasons` are empty exactly when the candidate is promoted."""

    reasons: tuple[str, ...]
    gain: PairedDifference | None
    """Candidate - champion over all problems; None without problems, as are the others."""
    by_benchmark: Mapping[str, PairedDifference]
    clean_gain: float | None
    """None when no problem is clean."""
    champion_undecided: float | None
    candidate_undecided: float | None
    problems: int

    @property
    def is_promoted(self) -> bool:
        return not self.reasons


def decide(pairs: Sequence[Pair]) -> Decision:
    """The decision; without a common problem, or without a clean one, nothing is shown and nothing promoted."""
    if not pairs:
        return Decision(("no problem was measured with both policies",), None, {}, None, None, None, 0)
    gain = _gain(pairs)
    names = sorted({pair.benchmark for pair in pairs})
    own = {name: [pair for pair in pairs if pair.benchmark == name] for name in names}
    by_benchmark = {name: _gain(own[name]) if len(names) > 1 else gain for name in names}
    clean = [pair.candidate - pair.champion for pair in pairs if pair.is_clean]
    clean_gain = fmean(clean) if clean else None
    undecided = (fmean(pair.champion_undecided for pair in pairs), fmean(pair.candidate_undecided for pair in pairs))
    reasons = [
        *_of_gain(gain),
        # The interval and not the verdict: a benchmark too small for a verdict can still warn.
        *(f"worse on {name}: {told(own)}" for name, own in by_benchmark.items() if own.interval.verdict() == "worse"),
        *_of_clean(clean_gain),
    ]
    if undecided[1] > undecided[0] + ROUNDING:
        reasons.append(f"undecided verdicts rise from {undecided[0]:.2%} to {undecided[1]:.2%}")
    return Decision(tuple(reasons), gain, by_benchmark, clean_gain, *undecided, len(pairs))


def told(gain: PairedDifference) -> str:
    """`+2.0 points (0.5 to 3.5)`: percentage points with the 95% interval."""
    estimate, low, high = gain.interval
    return f"{100 * estimate:+.1f} points ({100 * low:.1f} to {100 * high:.1f})"


def _gain(pairs: Sequence[Pair]) -> PairedDifference:
    return compare_paired([pair.champion for pair in pairs], [pair.candidate for pair in pairs])


def _of_gain(gain: PairedDifference) -> list[str]:
    if gain.verdict == "better":
        return []
    reason = "worse than the champion" if gain.verdict == "worse" else "inside the noise"
    return [f"{reason}: {told(gain)}"]


def _of_clean(clean_gain: float | None) -> list[str]:
    if clean_gain is None:
        return ["one of the policies was trained on every problem, so nothing clean can be compared"]
    return [f"the clean subset falls by {-100 * clean_gain:.1f} points"] if clean_gain < -ROUNDING else []


def decision_sentence(decision: Decision, champion: Champion) -> str:
    """One sentence: promoted with its gain, or refused with every reason."""
    against = f"champion v{champion.version}"
    if decision.is_promoted:
        return f"Scores higher than {against} on {decision.problems} problems: {told(decision.gain)}."
    return f"Refused against {against}: {'; '.join(decision.reasons)}."


def decision_page(decision: Decision, champion: Champion, branch: str, policy: str) -> str:
    """Markdown: the sentence, then the numbers behind it."""
    rows = [("all problems", told(decision.gain) if decision.gain else "none")]
    rows += [(name, told(found)) for name, found in decision.by_benchmark.items()]
    clean = "no problem is clean" if decision.clean_gain is None else f"{100 * decision.clean_gain:+.1f} points"
    rows.append(("clean subset", clean))
    if decision.candidate_undecided is not None:
        undecided = f"{decision.champion_undecided:.2%} to {decision.candidate_undecided:.2%}"
        rows.append(("undecided verdicts, champion to candidate", undecided))
    table = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join(
        [
            f"## {'Promoted' if decision.is_promoted else 'Refused'}: {policy} of {branch}",
            "",
            decision_sentence(decision, champion),
            "",
            f"Paired by problem against champion {champion.told()}; intervals are 95%, over problems. "
            "The decision is about these two policies, not about their settings.",
            "",
            "| candidate - champion | |",
            "|---|---|",
            *table,
        ]
    )
