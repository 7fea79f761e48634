"""What a round leaves to be read: every rollout with its fate, the schedule, and the curve."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pandas

from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of, write_json
from stages.foundations.tables.rollout import ROLLOUT
from stages.foundations.tables.table import read_table, write_table
from stages.observe.progress import say
from stages.observe.tracking import Run
from stages.rl_round.loop.signal_watch import SignalWatch
from stages.rl_round.rollouts.records import Batch, Group
from stages.rl_round.schedule.schedule import leftover_fates, step_fates

TABLE, FATES = ".parquet", ".json"


class RoundLog(Protocol):
    """Takes down each step."""

    def resume(self, step: int) -> None:
        """Forgets what was taken down after `step`: those steps are done again."""

    def kept(self) -> Mapping[str, str]:
        """Hashes of the files that a resumed run reads, by path in a checkpoint's folder: for its manifest."""

    def add(self, step: int, batch: Batch, row: Mapping[str, float], seconds: float) -> None:
        """A step has ended, after `seconds`, with the curve's `row`."""

    def finish(self, step: int, leftover: Sequence[Group]) -> None:
        """The round has ended after `step`; `leftover` are finished groups that no step has taken."""


class SilentLog:
    """Of every rank but 0."""

    def resume(self, step: int) -> None:
        """Nothing."""

    def kept(self) -> Mapping[str, str]:
        """None."""
        return {}

    def add(self, step: int, batch: Batch, row: Mapping[str, float], seconds: float) -> None:
        """Nothing."""

    def finish(self, step: int, leftover: Sequence[Group]) -> None:
        """Nothing."""


class LogContext(Protocol):
    """What a log of rank 0 needs: a `RoundContext`, or what a process without torch has of one."""

    scratch: Path
    run: Run


class RolloutLog:
    """Of rank 0: rollouts and fates go to files of each step in the scratch folder until the round ends, numbers to
    tracking. It warns where nothing can be learned.

    Each file must stay what was written: checkpoints list the files in their manifests, and `frame` and `fates` compare
    them with the hashes in memory.
    """

    def __init__(self, context: LogContext) -> None:
        self.folder = context.scratch / "rollouts"
        self._context = context
        self._signal = SignalWatch()
        self._hashes: dict[str, str] = {}
        """Of each file, by name."""

    def resume(self, step: int) -> None:
        """See the protocol. The files up to `step` must be those of the checkpoint's manifest, which are verified."""
        for file in self.folder.glob("[0-9]*"):
            if int(file.stem) > step:
                file.unlink()
        names = [name for done in range(1, step + 1) for name in _names(done)]
        self._hashes = {name: sha256_of(self.folder / name) for name in names}

    def restore(self, batches: Iterable[Batch]) -> None:
        """Writes the files of the first steps anew from their batches, which a journal has kept."""
        self.clear()
        for step, batch in enumerate(batches, start=1):
            self._keep(step, batch.groups, batch.left_out, step_fates(batch))

    def kept(self) -> Mapping[str, str]:
        """See the protocol."""
        return {f"../{self.folder.name}/{name}": digest for name, digest in self._hashes.items()}

    def add(self, step: int, batch: Batch, row: Mapping[str, float], seconds: float) -> None:
        """Keeps the rollouts whose fate the step decided, each once; `policy_version` says what sampled them."""
        self._keep(step, batch.groups, batch.left_out, step_fates(batch))
        rates = {"time/step_seconds": seconds, "tokens/per_second": row["tokens/sampled"] / seconds}
        self._context.run.log({**rates, **row}, step=step)
        if told := self._signal.see(batch.drawn):
            say(f"WARNING: step {step}: {told}")

    def finish(self, step: int, leftover: Sequence[Group]) -> None:
        """See the protocol."""
        self._keep(step + 1, [], leftover, leftover_fates(leftover))

    def frame(self) -> pandas.DataFrame:
        """All rollouts in the order of their steps."""
        return pandas.concat([read_table(file, ROLLOUT) for file in self._verified(TABLE)], ignore_index=True)

    def fates(self) -> list[dict[str, Any]]:
        """What `write_schedule` needs, in the order of the steps: rows are those of `frame`."""
        return [json.loads(file.read_bytes()) for file in self._verified(FATES)]

    def clear(self) -> None:
        """Removes the files: the outputs are written."""
        for file in self.folder.glob("[0-9]*"):
            file.unlink()
        self._hashes = {}

    def _verified(self, suffix: str) -> list[Path]:
        """The files of one kind in the order of their steps; UserError when one is missing or has changed."""
        files = [self.folder / name for name in sorted(self._hashes) if name.endswith(suffix)]
        for file in files:
            if not file.exists() or sha256_of(file) != self._hashes[file.name]:
                raise UserError(
                    f"{file} is missing or has changed since it was written: check the disk and run `dvc repro` again, "
                    "which continues from the last checkpoint that is whole"
                )
        return files

    def _keep(
        self, step: int, trained: Sequence[Group], left_out: Sequence[Group], told: Mapping[str, Any]
    ) -> None:
        fates = [(group, True) for group in trained] + [(group, False) for group in left_out]
        rows = [
            _row(step, group, index, is_used)
            for group, is_used in fates
            for index in range(len(group.rollouts))
        ]
        table, fates_file = (self.folder / name for name in _names(step))
        write_table(rows, table, ROLLOUT)
        write_json(fates_file, told)
        self._hashes |= {file.name: sha256_of(file) for file in (table, fates_file)}


def _names(step: int) -> tuple[str, str]:
    """The files of a step: rollouts and fates."""
    return f"{step:09d}{TABLE}", f"{step:09d}{FATES}"


def _row(step: int, group: Group, index: int, is_used: bool) -> dict[str, Any]:
    rollout = group.rollouts[index]
    return {
        "problem_id": group.problem_id,
        "step": step,
        "policy_version": rollout.sample.policy_version,
        "sample_index": index,
        "response": rollout.response,
        "response_tokens": len(rollout.sample.token_ids),
        "token_ids": rollout.sample.token_ids,
        "rollout_logprobs": rollout.sample.logprobs,
        "reward": rollout.reward,
        "verdict": rollout.verdict.value,
        "is_truncated": rollout.sample.is_truncated,
        "is_trained": is_used and rollout.is_decided,
    }
