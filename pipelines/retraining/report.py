"""The gate's decision in words."""

from __future__ import annotations

from pipelines.retraining.champion import Champion
from pipelines.retraining.gate import Decision, told


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
    clean = (
        "no problem is clean" if decision.clean_gain is None else f"{100 * decision.clean_gain:+.1f} points"
    )
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
