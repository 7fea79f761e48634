"""A verifier that fails on many responses ends the round: what it would teach is not the policy's doing."""

from __future__ import annotations

from collections.abc import Iterable

from stages.foundations.errors import UserError
from stages.rl_round.params.verifier import ModelVerifier, RoundVerifierParams
from stages.rl_round.rollouts.records import Group


def stop_when_undecided(drawn: Iterable[Group], most_fraction: float, verifier: RoundVerifierParams) -> None:
    """UserError when the verifier had no opinion on more than `most_fraction` of the responses."""
    rollouts = [rollout for group in drawn for rollout in group.rollouts]
    failures = [rollout.verdict for rollout in rollouts if not rollout.is_decided]
    if len(failures) <= most_fraction * len(rollouts):
        return
    remedy = "raise verifier.timeout_seconds or memory_mib, or look at the responses"
    if isinstance(verifier, ModelVerifier):
        remedy = (
            "lower rl.verifier.reading.undecided_margin, or give the judge more teaching.steps or max_tokens"
        )
    raise UserError(
        f"the verifier could not decide {len(failures)} of {len(rollouts)} responses "
        f"({', '.join(sorted(set(failures)))}), more than verifier.abort_undecided_fraction "
        f"{most_fraction} allows: {remedy}; the last checkpoint is kept"
    )
