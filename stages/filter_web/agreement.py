"""Answer agreement: an exercise is trusted when the policy, sampled a few times, reaches its answer at least once.

Source: "Demystifying Long Chain-of-Thought Reasoning in LLMs" (arXiv 2502.03373), the filter of its web data.
Deviation: the number of responses is a parameter, and the verdicts come from the rule-based verifier.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import SamplingSettings
from stages.engines.trainers.protocol import Ranks
from stages.engines.verifier.judged_responses import Drawing, judged_responses
from stages.filter_web.stage import PolicyAgreement
from stages.foundations.job import Attempt
from stages.foundations.params import load_value
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import Funnel

Rows = list[dict[str, Any]]


def keep_agreeing(
    rows: Rows, funnel: Funnel, params: PolicyAgreement, params_path: Path, policy: Path, attempt: Attempt, ranks: Ranks
) -> tuple[Rows, dict[str, int]]:
    """Returns the rows whose answer agrees with at least one response of the policy, in order.

    Also returns the cost and yield: exercises sampled for, tokens sampled, exercises kept. All ranks pass the same rows
    and get the same; each samples and judges its share.
    """
    if not rows:
        return rows, {}
    # The seed of the whole recipe, so that another seed selects other exercises and other responses.
    seed = load_value(params_path, "seed")
    rows, left_out = _draw(rows, params.max_candidates, seed)
    for row in left_out:
        funnel.drop(row, "not_sampled", "beyond max_candidates", row["candidate_id"])
    settings = SamplingSettings(params.temperature, 1.0, 0, params.max_response_tokens, None)
    drawing = Drawing(params.samples, settings, (seed, "filter_web"), "agreement")
    names = [row["candidate_id"] for row in rows]
    judged = judged_responses(rows, names, drawing, params_path, policy, attempt, ranks)
    kept = []
    for row, of_row in zip(rows, judged, strict=True):
        # One is enough: it shows that the answer can be reached from the problem's text.
        if any(one.judgement.verdict is Verdict.CORRECT for one in of_row):
            kept.append(row)
        else:
            answers = ", ".join(str(one.judgement.extracted)[:40] for one in of_row)
            funnel.drop(row, "no_agreement", f"responses gave: {answers}", row["candidate_id"])
    return kept, {
        "agreement/asked": len(rows),
        "agreement/sampled_tokens": sum(one.tokens for of_row in judged for one in of_row),
        "agreement/kept": len(kept),
    }


def _draw(rows: Rows, limit: int | None, seed: int) -> tuple[Rows, Rows]:
    if limit is None or len(rows) <= limit:
        return rows, []
    # Places are sampled and not rows, so that the rows keep their order.
    chosen = set(random.Random(derive_seed(seed, "filter_web")).sample(range(len(rows)), limit))
    return [row for i, row in enumerate(rows) if i in chosen], [row for i, row in enumerate(rows) if i not in chosen]
