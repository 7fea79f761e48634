"""What a round writes when it has ended, whatever loop ran it."""

from __future__ import annotations

from pathlib import Path

from stages.foundations.files import replace_folder, sha256_of
from stages.foundations.metrics import write_curves, write_metrics
from stages.foundations.tables.rollout import ROLLOUT
from stages.foundations.tables.table import write_table
from stages.observe.progress import say_warnings
from stages.rl_round.loop.round_log import RolloutLog
from stages.rl_round.schedule.schedule import FILE, RoundIdentity, write_schedule
from stages.rl_round.task import RoundTask


def write_outputs(
    task: RoundTask, log: RolloutLog, curve: list[dict[str, float]], known: dict[str, float], *beside: Path
) -> None:
    """Rollouts, schedule (with the files `beside` it), curve and metrics, metrics last; the policy is written already.

    `known` are further metrics of the round. Warns when no step trained.
    """
    paths, frame = task.paths, log.frame()
    metrics = round_metrics(curve) | known
    metrics |= {"rollouts/drawn": len(frame), "rollouts/trained": int(frame["is_trained"].sum())}
    write_table(frame, paths.rollouts, ROLLOUT)
    with replace_folder(paths.schedule) as folder:
        write_schedule(folder / FILE, identity_of(task), sha256_of(paths.rollouts), log.fates())
        for file in beside:
            (folder / file.name).write_bytes(file.read_bytes())
    write_curves(paths.curves, curve)
    task.run.summary(metrics)
    write_metrics(paths.metrics, metrics, {paths.headline: {"accuracy": "accuracy/mean_last"}})
    say_warnings("rl_round", task.name, metrics)


def identity_of(task: RoundTask) -> RoundIdentity:
    """What decides the weights besides the rollouts. How often it was saved and checked does not, nor how long it was:
    a replay may end earlier."""
    settings = {
        "seed": task.seed,
        "prompt": task.sections["prompt"].model_dump(mode="json"),
        "trainer": task.sections["trainer"].model_dump(mode="json"),
        "rl": task.params.model_dump(
            mode="json", exclude={"loop", "checkpoint_every_steps", "weight_sync_check"}
        ),
        f"rl_rounds.{task.name}": task.round.model_dump(mode="json", exclude={"steps", "reward"}),
    }
    return RoundIdentity(
        task.name, settings, task.attempt.digests["policy"], task.attempt.digests["problems"]
    )


MEAN_DIAGNOSTICS = (
    "advantage/variance",
    "importance/effective_sample_fraction",
    "logprob_gap/k3",
    "logprob_gap/mean",
    "mask/fraction_dropped",
    "optim/gradient_norm",
    "pruning/outside_fraction",
    "reference_kl/k3",
    "repetition/token_fraction",
    "trust_region/acceptance_rate",
    "trust_region/error_bound",
    "verdict/false_correct_fraction",
    "verdict/false_wrong_fraction",
    "verdict/rule_agreement_fraction",
    "variance_proxy/power",
)


def round_metrics(curve: list[dict[str, float]]) -> dict[str, float]:
    """`<name>_first` and `<name>_last` of what a round should move, means of diagnostics, the worst gap, and totals."""
    moved = (
        "accuracy/mean",
        "reward/mean",
        "entropy/mean",
        "length/response_tokens_mean",
        "length/truncated_fraction",
    )
    metrics = {f"{name}_first": curve[0][name] for name in moved if name in curve[0]}
    metrics |= {f"{name}_last": curve[-1][name] for name in moved if name in curve[-1]}
    for name in MEAN_DIAGNOSTICS:
        values = [row[name] for row in curve if name in row]
        metrics |= {f"{name}_mean": sum(values) / len(values)} if values else {}
    for worst in ("logprob_gap/token_max", "sync/logprob_gap_max", "verdict/undecided_fraction"):
        values = [row[worst] for row in curve if worst in row]
        metrics |= {worst: max(values)} if values else {}
    for total in ("groups/drawn", "groups/trained", "groups/too_stale", "tokens/sampled", "tokens/trained"):
        metrics[total] = sum(row[total] for row in curve)
    metrics["progress/steps"] = len(curve)
    metrics["progress/steps_without_update"] = sum("loss/policy" not in row for row in curve)
    return metrics
