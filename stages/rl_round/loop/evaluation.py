"""Held-out problems during a round: accuracy of the policy, which weights are kept, and when the round stops.

Their responses use separate random numbers, so nothing that the round draws or trains on depends on them. All ranks
sample; rank 0 counts and broadcasts the result, so all ranks decide the same.
The trainer of the asynchronous loop evaluates as well, and its hub, which imports no torch, decides and reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.estimators import clustered_bootstrap, with_width
from stages.observe.progress import say
from stages.rl_round.drawing import GroupDrawing, ProblemDraw
from stages.rl_round.methods import ModelVerifier, VerdictReward
from stages.rl_round.params import EvaluationParams
from stages.rl_round.records import Group
from stages.rl_round.round import Round

if TYPE_CHECKING:  # imports torch
    from stages.rl_round.loop.weight_sync import RoundState

Row = dict[str, float]
ACCURACY = "evaluation/accuracy"


def evaluate_if_due(state: RoundState, this_round: Round, drawing: GroupDrawing) -> bool:
    """Evaluates when due and adds the row to the state; returns True when a checkpoint must keep these weights.

    Collective.
    """
    if not is_due(state.evaluations, state.step, this_round):
        return False
    with this_round.run.phase("evaluate"):
        row = evaluate(state.step, this_round, drawing)
    state.evaluations.append(row)
    if this_round.trainer.rank == 0:
        tell(row, this_round)
    state.best_step = kept_step(state.evaluations, this_round.params.evaluation)
    # After the last step the trainer still has these weights.
    return state.best_step == state.step < this_round.settings.steps


def is_due(evaluations: Sequence[Row], step: int, this_round: Round) -> bool:
    """Returns True for the start, every `every_steps` steps and the end, unless the last evaluation is of that step."""
    settings = this_round.params.evaluation
    # A round that resumes from a checkpoint already has the row of its step.
    if settings is None or (evaluations and evaluations[-1]["step"] == step):
        return False
    return step % settings.every_steps == 0 or step == this_round.settings.steps


def tell(row: Row, this_round: Round) -> None:
    """Reports an evaluation to tracking and to the log."""
    this_round.run.log(row, step=row["step"])
    say(f"{this_round.name}: {_shown(row)}")


def evaluate(step: int, this_round: Round, drawing: GroupDrawing) -> Row:
    """Returns the row of `step`, whose weights the sampler has; collective."""
    params, settings, sampler = this_round.params, this_round.params.evaluation, drawing.sampler
    # Still asleep when the last step changed no weights.
    if sampler.is_asleep:
        sampler.load_weights(this_round.trainer.named_weights(), sampler.policy_version)
    # Accuracy counts verdicts and ignores the round's reward.
    reward = VerdictReward(kind="by_verdict", correct=1.0, wrong=0.0, unparsed=0.0)
    changes = {"reward": reward, "temperature": settings.temperature}
    params = params.without_distributions().model_copy(update=changes)
    draws = [ProblemDraw(problem, 0) for problem in this_round.held_out]
    seed_path = this_round.seed, this_round.name, "evaluation", step
    groups = replace(drawing, functions=None).draw(draws, params, *seed_path, group_size=settings.samples)
    if isinstance(params.verifier, ModelVerifier):
        # Discards these verdicts: they are not part of the next step's agreement with the rules.
        drawing.verifier.pop_judged()
    row = evaluation_row(step, groups, settings.problems, settings.samples) if this_round.trainer.rank == 0 else None
    return this_round.trainer.broadcast(row)


def evaluation_row(step: int, groups: Sequence[Group], problems: int, samples: int) -> Row:
    """Returns the accuracy over `problems` times `samples` responses, with its 95% interval over problems.

    A problem without a group counts as wrong, because its prompt did not fit. A response without a verdict does too.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    correct = [sum(rollout.verdict is Verdict.CORRECT for rollout in group.rollouts) for group in groups]
    correct += [0] * (problems - len(groups))
    _, low, high = with_width(clustered_bootstrap([count / samples for count in correct]), problems, 0.0, 1.0)
    return {
        "step": step,
        # From counts, not a mean of means: evaluations that tie must be exactly equal.
        ACCURACY: sum(correct) / (problems * samples),
        f"{ACCURACY}_low": low,
        f"{ACCURACY}_high": high,
        "evaluation/truncated_fraction": sum(one.sample.is_truncated for one in rollouts) / max(1, len(rollouts)),
        "evaluation/undecided_fraction": sum(not one.is_decided for one in rollouts) / max(1, len(rollouts)),
    }


def best_evaluation(evaluations: Sequence[Row]) -> Row:
    """Returns the row with the highest accuracy, the first of equal ones."""
    return max(evaluations, key=lambda row: row[ACCURACY])


def kept_step(evaluations: Sequence[Row], settings: EvaluationParams | None) -> int | None:
    """Returns the step whose weights the round keeps; None when it keeps the last ones."""
    if settings is None or settings.keep == "last" or not evaluations:
        return None
    return best_evaluation(evaluations)["step"]


def is_over(evaluations: Sequence[Row], settings: EvaluationParams | None) -> bool:
    """Returns True after `patience` evaluations in a row without a new best."""
    if settings is None or settings.patience is None or not evaluations:
        return False
    return len(evaluations) - 1 - evaluations.index(best_evaluation(evaluations)) >= settings.patience


def sum_up(this_round: Round, rows: Sequence[Row], step: int) -> Row:
    """Logs a summary of the evaluations of a round that ends after `step`, and returns the round's metrics of them.

    Empty when there were none.
    """
    settings = this_round.params.evaluation
    if settings is None:
        return {}
    best, last, is_early = best_evaluation(rows), rows[-1], step < this_round.settings.steps
    kept = step if settings.keep == "last" else best["step"]
    why = f" early, after {settings.patience} evaluations without a new best" if is_early else ""
    say(
        f"{this_round.name} ends after step {step}{why}, with the weights of step {kept}. "
        f"First {_shown(rows[0])}; best {_shown(best)}; last {_shown(last)}"
    )
    ends, too_long = ("", "_low", "_high"), settings.problems - len(this_round.held_out)
    return {
        **{f"{ACCURACY}_best{end}": best[f"{ACCURACY}{end}"] for end in ends},
        **{f"{ACCURACY}_last{end}": last[f"{ACCURACY}{end}"] for end in ends},
        "evaluation/best_step": best["step"],
        "evaluation/kept_step": kept,
        "evaluation/stopped_early": int(is_early),
        **({"evaluation/prompts_too_long": too_long} if too_long else {}),
    }


def _shown(row: Row) -> str:
    low, high = row[f"{ACCURACY}_low"], row[f"{ACCURACY}_high"]
    return f"held-out accuracy {row[ACCURACY]:.1%} [{low:.1%}, {high:.1%}] at step {row['step']}"
