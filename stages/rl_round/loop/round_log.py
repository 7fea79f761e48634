"""The records of a round: every rollout and its fate, the schedule, the curve and the metrics.

A running round also warns when its problems give no signal: all responses of a group right, or all wrong. Such a round
trains on zeros (or, with dynamic sampling, samples without result) and after hours ends with unchanged weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.episodes import episode_columns
from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, sha256_of, write_curves, write_json, write_metrics
from stages.foundations.tables import ROLLOUT, read_table, write_table
from stages.observe.progress import say, say_warnings
from stages.rl_round.records import Batch, Group
from stages.rl_round.round import Round
from stages.rl_round.schedule import FILE, RoundIdentity, leftover_fates, step_fates, write_schedule

Rows = Sequence[dict[str, float]]
TABLE, FATES = ".parquet", ".json"


class RolloutLog:
    """Of rank 0: writes rollouts and fates to files of each step in the scratch folder until the round ends, and logs
    metrics to tracking. Warns when there is nothing to learn.

    The files must not change: checkpoints list them in their manifests, and `frame` and `fates` compare them with the
    hashes in memory.
    """

    def __init__(self, this_round: Round) -> None:
        self.folder = this_round.scratch / "rollouts"
        self._round = this_round
        self._signal = SignalWatch()
        self._hashes: dict[str, str] = {}

    def resume(self, step: int) -> None:
        """Removes the records of the steps after `step`, which run again.

        The files up to `step` must be those of the checkpoint's manifest, which are verified.
        """
        for file in self.folder.glob("[0-9]*"):
            # These steps run again: an old file must not look like a file of the new run.
            if int(file.stem) > step:
                file.unlink()
        names = [name for done in range(1, step + 1) for name in _names(done)]
        self._hashes = {name: sha256_of(self.folder / name) for name in names}

    def restore(self, batches: Iterable[Batch]) -> None:
        """Writes the files of the first steps again from their batches, which the journal has."""
        self.clear()
        for step, batch in enumerate(batches, start=1):
            self._keep(step, batch.groups, batch.left_out, step_fates(batch))

    def kept(self) -> Mapping[str, str]:
        """Returns hashes of the files that a resumed run reads, by path in a checkpoint's folder, for its manifest."""
        return {f"../{self.folder.name}/{name}": digest for name, digest in self._hashes.items()}

    def add(self, step: int, batch: Batch, row: Mapping[str, float], seconds: float) -> None:
        """Records a step that took `seconds`, with the curve's `row`; writes each rollout once its fate is decided."""
        self._keep(step, batch.groups, batch.left_out, step_fates(batch))
        rates = {"time/step_seconds": seconds, "tokens/per_second": row["tokens/sampled"] / seconds}
        # Times differ between runs, so they are not in the curve, whose bytes DVC compares.
        rates |= environment_seconds(batch.drawn)
        self._round.run.log({**rates, **row}, step=step)
        # A teacher gives a signal for every token.
        if (advice := self._signal.see(batch.drawn)) and not self._round.settings.distillation:
            say(f"WARNING: step {step}: {advice}")

    def finish(self, step: int, leftover: Sequence[Group]) -> None:
        """Records the end of the round after `step`; `leftover` are finished groups that no step has taken."""
        self._keep(step + 1, [], leftover, leftover_fates(leftover))

    def frame(self) -> pandas.DataFrame:
        """Returns all rollouts in the order of their steps."""
        return pandas.concat([read_table(file, ROLLOUT) for file in self._verified(TABLE)], ignore_index=True)

    def fates(self) -> list[dict[str, Any]]:
        """Returns the fates for `write_schedule`, in the order of the steps: rows are those of `frame`."""
        return [json.loads(file.read_bytes()) for file in self._verified(FATES)]

    def clear(self) -> None:
        """Removes the files, once the outputs are written."""
        for file in self.folder.glob("[0-9]*"):
            file.unlink()
        self._hashes = {}

    def _verified(self, suffix: str) -> list[Path]:
        """Returns the files of one kind in the order of their steps; UserError when one is missing or has changed."""
        files = [self.folder / name for name in sorted(self._hashes) if name.endswith(suffix)]
        for file in files:
            # Compared with hashes in memory: a hash read from the disk could have changed together with its file.
            if not file.exists() or sha256_of(file) != self._hashes[file.name]:
                raise UserError(
                    f"{file} is missing or has changed since it was written: check the disk and run `dvc repro` again, "
                    "which continues from the last checkpoint that is whole"
                )
        return files

    def _keep(self, step: int, trained: Sequence[Group], left_out: Sequence[Group], fates: Mapping[str, Any]) -> None:
        # Trained groups first: the schedule counts rows in this order, and stores only the first row of a group.
        decided = [(group, True) for group in trained] + [(group, False) for group in left_out]
        rows = [_row(step, group, index, is_used) for group, is_used in decided for index in range(len(group.rollouts))]
        table, fates_file = (self.folder / name for name in _names(step))
        write_table(rows, table, ROLLOUT)
        write_json(fates_file, fates)
        self._hashes |= {file.name: sha256_of(file) for file in (table, fates_file)}


def _names(step: int) -> tuple[str, str]:
    return f"{step:09d}{TABLE}", f"{step:09d}{FATES}"


def _row(step: int, group: Group, index: int, is_used: bool) -> dict[str, Any]:
    rollout = group.rollouts[index]
    return {
        "problem_id": group.problem_id,
        "step": step,
        "policy_version": rollout.sample.policy_version,
        "sample_index": index,
        "response": rollout.response,
        "response_tokens": rollout.sample.policy_tokens,
        "token_ids": rollout.sample.token_ids,
        "rollout_logprobs": rollout.sample.logprobs,
        "reward": rollout.reward,
        "verdict": rollout.verdict.value,
        "is_truncated": rollout.sample.is_truncated,
        # An undecided rollout of a trained group is not part of any update.
        "is_trained": is_used and rollout.is_decided,
        **episode_columns(rollout.sample),
    }


def environment_seconds(groups: Sequence[Group]) -> dict[str, float]:
    """Returns the median and the 99th percentile of the time that an episode's environment took; empty without one."""
    samples = [rollout.sample for group in groups for rollout in group.rollouts]
    seconds = sorted(sample.episode.seconds for sample in samples if sample.episode)
    if not seconds:
        return {}
    return {f"environment/seconds_p{per_cent}": seconds[(len(seconds) - 1) * per_cent // 100] for per_cent in (50, 99)}


STEPS_IN_VAIN = 3
"""Steps in a row without signal before the first warning (one may be chance); it repeats when their number doubles."""
SMALLEST_SHARE = 0.05
"""Share of a step's groups with signal, below which the step counts as one without: the other groups cost most of its
time."""


class SignalWatch:
    """Counts steps in a row in which almost no group had signal."""

    def __init__(self) -> None:
        self._forget()

    def see(self, drawn: Sequence[Group]) -> str | None:
        """Counts a step by the groups that it drew; returns a warning when one is due. Ignores steps without draws."""
        if not drawn:
            return None
        if sum(group.has_signal for group in drawn) >= SMALLEST_SHARE * len(drawn):
            self._forget()
            return None
        self._steps += 1
        self._groups += drawn
        # Doubling limits a round of a thousand such steps to nine warnings.
        if self._steps < self._next:
            return None
        self._next *= 2
        return _advice(self._groups, self._steps)

    def _forget(self) -> None:
        self._groups: list[Group] = []
        self._steps = 0
        self._next = STEPS_IN_VAIN


def _advice(groups: Sequence[Group], steps: int) -> str:
    """Returns the observation, and advice for the side that most groups are on: too easy or too hard."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    right = sum(all(rollout.verdict is Verdict.CORRECT for rollout in group.rollouts) for group in groups) / len(groups)
    cut = sum(rollout.sample.is_truncated for rollout in rollouts) / len(rollouts)
    unparsed = sum(rollout.verdict is Verdict.UNPARSED for rollout in rollouts) / len(rollouts)
    seen = (
        f"no signal: for {steps} steps almost no group had right and wrong responses "
        f"({len(groups)} groups: {right:.0%} all right; {cut:.0%} of responses cut off, {unparsed:.0%} without an "
        "answer). There is nothing to learn from them"
    )
    # Advice for the side that most groups are on: the remedies are opposite, and one sentence cannot give both.
    if right > 0.5:
        return (
            f"{seen}: the problems are too easy for this policy. Give harder ones (`sources`: larger sizes or more "
            "steps), or leave out what it can do (rl_rounds.<round>.prompt_selection: {kind: pass_rate, ...})"
        )
    if cut > 0.5:
        return (
            f"{seen}: responses do not end within the limit. Raise rl.max_response_tokens, or teach the policy to "
            "end (more sft.steps, shorter demonstrations)"
        )
    return (
        f"{seen}: the problems are too hard for this policy. Give easier ones (`sources`: smaller sizes or fewer "
        "steps), more sft.steps, or a larger rl.group_size, in which a rare right response is found"
    )


def write_outputs(
    this_round: Round, log: RolloutLog, curve: Rows, known: dict[str, float], *beside: Path, evaluations: Rows = ()
) -> None:
    """Writes rollouts, schedule (with the files `beside` it), curve and metrics; the policy is written already.

    `known` are further metrics of the round, `evaluations` further columns of the curve. Warns when no step trained.
    """
    paths, frame = this_round.paths, log.frame()
    # Metrics are written last: where they exist, the outputs are complete.
    metrics = round_metrics(curve) | known
    metrics |= {"prompts/too_long": this_round.too_long} if this_round.too_long else {}
    metrics |= {"rollouts/drawn": len(frame), "rollouts/trained": int(frame["is_trained"].sum())}
    write_table(frame, paths.rollouts, ROLLOUT)
    with replace_folder(paths.schedule) as folder:
        write_schedule(folder / FILE, identity_of(this_round), sha256_of(paths.rollouts), log.fates())
        for file in beside:
            (folder / file.name).write_bytes(file.read_bytes())
    write_curves(paths.curves, _joined(curve, evaluations))
    this_round.run.summary(metrics)
    write_metrics(paths.metrics, metrics, {paths.headline: {"accuracy": "accuracy/mean_last"}})
    say_warnings("rl_round", this_round.name, metrics)


def _joined(curve: Rows, evaluations: Rows) -> Rows:
    """Returns the curve with the columns of `evaluations`; their first row, of step 0, has no other columns."""
    rows = {row["step"]: row for row in (*evaluations[:1], *curve)}
    return [*(rows | {row["step"]: {**rows[row["step"]], **row} for row in evaluations}).values()]


def identity_of(this_round: Round) -> RoundIdentity:
    """Returns everything that decides the weights besides the rollouts. Intervals of checkpoints and checks do not
    count, and the number of steps does not either: a replay may end earlier."""
    settings = {
        "seed": this_round.seed,
        "prompt": this_round.prompt.model_dump(mode="json"),
        "trainer": this_round.trainer_params.model_dump(mode="json"),
        "rl": this_round.params.model_dump(
            mode="json", exclude={"loop", "checkpoint_every_steps", "weight_sync_check", "evaluation"}
        ),
        f"rl_rounds.{this_round.name}": this_round.settings.model_dump(mode="json", exclude={"steps", "reward"}),
    }
    digests = this_round.attempt.digests
    if this_round.settings.distillation:
        settings[f"teachers.{this_round.name}"] = digests["teacher"]
    return RoundIdentity(this_round.name, settings, digests["policy"], digests["problems"])


MEAN_DIAGNOSTICS = (
    "advantage/variance",
    "critic/clip_fraction",
    "critic/loss",
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


def round_metrics(curve: Rows) -> dict[str, float]:
    """Returns `<name>_first` and `<name>_last` of what a round should change, means of diagnostics, the worst gap and
    totals."""
    moved = ("accuracy/mean", "reward/mean", "entropy/mean", "length/response_tokens_mean", "length/truncated_fraction")
    moved += ("turns/mean", "calls/mean", "calls/failed_fraction", "distillation/reverse_kl")
    moved += ("vote/majority_ratio", "vote/label_accuracy", "critic/explained_variance")
    metrics = {f"{name}_first": curve[0][name] for name in moved if name in curve[0]}
    metrics |= {f"{name}_last": curve[-1][name] for name in moved if name in curve[-1]}
    for name in MEAN_DIAGNOSTICS:
        values = [row[name] for row in curve if name in row]
        metrics |= {f"{name}_mean": sum(values) / len(values)} if values else {}
    # The worst step and not the mean: it must show one bad sync among hundreds.
    for worst in ("logprob_gap/token_max", "sync/logprob_gap_max", "verdict/undecided_fraction"):
        values = [row[worst] for row in curve if worst in row]
        metrics |= {worst: max(values)} if values else {}
    for total in ("groups/drawn", "groups/trained", "groups/too_stale", "tokens/sampled", "tokens/trained"):
        metrics[total] = sum(row[total] for row in curve)
    metrics["progress/steps"] = len(curve)
    metrics["progress/steps_without_update"] = sum("loss/policy" not in row for row in curve)
    return metrics
