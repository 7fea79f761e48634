"""Held-out problems during a round: accuracy of the policy, which weights are kept, and when the round stops.

Their responses use separate random numbers, so nothing that the round draws or trains on depends on them. All ranks
sample; rank 0 counts and broadcasts the result, so all ranks decide the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.estimators import clustered_bootstrap, with_width
from stages.observe.progress import say
from stages.rl_round.drawing import GroupDrawing, ProblemDraw
from stages.rl_round.loop.weight_sync import RoundState
from stages.rl_round.methods import ModelVerifier, VerdictReward
from stages.rl_round.params import EvaluationParams
from stages.rl_round.records import Group
from stages.rl_round.round import Round

Row = dict[str, float]
ACCURACY = "evaluation/accuracy"


def evaluate_if_due(state: RoundState, this_round: Round, drawing: GroupDrawing) -> bool:
    """Evaluates when due and adds the row to the state; returns True when a checkpoint must keep these weights.

    An evaluation is due at the start, every `every_steps` steps, and at the end. Collective.
    """
    settings, step, last = this_round.params.evaluation, state.step, this_round.settings.steps
    # A round that resumes from a checkpoint already has the row of its step.
    is_known = bool(state.evaluations) and state.evaluations[-1]["step"] == step
    if settings is None or is_known or (step % settings.every_steps and step < last):
        return False
    with this_round.run.phase("evaluate"):
        row: Row = this_round.trainer.broadcast(_evaluate(step, this_round, drawing, settings))
    state.evaluations.append(row)
    this_round.run.log(row, step=step)
    if this_round.trainer.rank == 0:
        say(f"{this_round.name}: {_shown(row)}")
    if settings.keep == "last" or best_evaluation(state.evaluations) is not row:
        return False
    state.best_step = step
    # After the last step the trainer still has these weights.
    return step < last


def _evaluate(step: int, this_round: Round, drawing: GroupDrawing, settings: EvaluationParams) -> Row | None:
    """Returns the row of `step`; None except on rank 0."""
    params, sampler, samples = this_round.params, drawing.sampler, settings.samples
    # Still asleep when the last step changed no weights.
    if sampler.is_asleep:
        sampler.load_weights(this_round.trainer.named_weights(), sampler.policy_version)
    # Accuracy counts verdicts and ignores the round's reward. Whole distributions would fill the memory without use.
    reward = VerdictReward(kind="by_verdict", correct=1.0, wrong=0.0, unparsed=0.0)
    study = params.study and params.study.model_copy(update={"rollout_distributions": None})
    params = params.model_copy(update={"reward": reward, "study": study, "temperature": settings.temperature})
    draws = [ProblemDraw(problem, 0) for problem in this_round.held_out]
    seed_path = this_round.seed, this_round.name, "evaluation", step
    groups = replace(drawing, functions=None).draw(draws, params, *seed_path, group_size=samples)
    if isinstance(params.verifier, ModelVerifier):
        # Discards these verdicts: they are not part of the next step's agreement with the rules.
        drawing.verifier.pop_judged()
    return evaluation_row(step, groups, settings.problems, samples) if this_round.trainer.rank == 0 else None


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


def is_over(evaluations: Sequence[Row], settings: EvaluationParams | None) -> bool:
    """Returns True after `patience` evaluations in a row without a new best."""
    if settings is None or settings.patience is None:
        return False
    return len(evaluations) - 1 - evaluations.index(best_evaluation(evaluations)) >= settings.patience


def sum_up(this_round: Round, state: RoundState) -> Row:
    """Logs a summary of the evaluations and returns the round's metrics of them; empty when there were none."""
    settings, rows = this_round.params.evaluation, state.evaluations
    if settings is None:
        return {}
    best, last, is_early = best_evaluation(rows), rows[-1], state.step < this_round.settings.steps
    kept = state.step if state.best_step is None else state.best_step
    why = f" early, after {settings.patience} evaluations without a new best" if is_early else ""
    say(
        f"{this_round.name} ends after step {state.step}{why}, with the weights of step {kept}. "
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
