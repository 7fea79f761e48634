"""A recipe's own sizes: model, groups, mini-batches and limits from its parameters, lengths from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.planning.plan import Question, RecipeWork, read_work, told_lengths
from pipelines.planning.sizes import GPUS, NUMBER_BYTES, find_gpu
from pipelines.simulating.setting import CONSTANTS, PAPER_SIGMA, LogNormal, MeasuredGroups, Model, Setting, Work
from stages.foundations.errors import UserError

WINDOW = 4
"""Assumed for a recipe whose loop is not asynchronous: without one, responses would pile up before a slow trainer."""


@dataclass(frozen=True)
class RecipeQuestion:
    """What the user says beside the recipe; None and "" where nothing is said."""

    device: str
    gpus: int
    data: Path
    """Of a finished run: its lengths are taken if they are there."""
    window: int | None = None
    """Of the asynchronous loop; None takes the recipe's, or `WINDOW`."""
    mean_tokens: float | None = None
    """Of a response."""
    prompt_tokens: float | None = None
    model: str = ""
    config: str = ""


def recipe_setting(root: Path, recipe: str, question: RecipeQuestion) -> tuple[Setting, list[str]]:
    """The round of the recipe with the longest responses, and sentences on what was taken for granted.

    UserError for a recipe without RL, without lengths, or whose policy does not fit the device.
    """
    if question.device.upper() == "CPU":
        raise UserError(f"--device cpu: the simulator knows GPUs: {', '.join(GPUS)}")
    gpu = find_gpu(question.device)
    metrics = question.data / "metrics"
    asked = Question(
        model=question.model,
        config=question.config,
        prompt_tokens=question.prompt_tokens,
        measured=str(metrics) if question.mean_tokens is None and metrics.is_dir() else "",
    )
    read = read_work(root, recipe, asked)
    rounds = [address for address, work in read.work.items() if work.training and work.sampling]
    if not rounds:
        raise UserError(f"{recipe} has no RL round: there is nothing to draw and to train on by turns")
    address = max(rounds, key=lambda one: read.work[one].sampling[0].lengths.mean)
    lengths, told = _lengths(read, address, question)
    rl, trainer = read.sections["rl"], read.sections.get("trainer")
    drawing = read.work[address].sampling[0]
    drawn = drawing.responses / max(1.0, read.work[address].training.updates / rl.minibatches) / rl.group_size
    work = Work(
        groups=max(1, round(drawn)),
        group_size=rl.group_size,
        prompt_tokens=max(1, round(read.lengths.prompt)),
        lengths=lengths,
        trained_share=min(1.0, rl.problems_per_step / max(1, round(drawn))),
    )
    constants = replace(
        CONSTANTS,
        minibatches=rl.minibatches,
        most_sequences=read.sections["sampler"].max_sequences,
        training_flops=6.0
        + 2.0 * (rl.proximal == "recompute")
        + 2.0 * (rl.reference_kl.kind != "none")
        + 2.0 * bool(trainer and trainer.gradient_checkpointing),
    )
    loop = rl.loop if rl.loop.kind == "asynchronous" else None
    window = question.window if question.window is not None else loop.window if loop else WINDOW
    share = loop.replica_share if loop else CONSTANTS.share
    constants = replace(constants, window=window, share=share)
    told += [
        f"asynchronous loops: window {window}, an empty replica takes {share:g} x batch / replicas"
        + ("" if loop or question.window is not None else " (assumed)"),
        f"{constants.minibatch_seconds:g} s fixed a mini-batch and {1000 * constants.host_seconds:g} ms a decode step, "
        "which rule where the policy is small (assumed)",
        f"a step: {work.groups} groups of {work.group_size} drawn, {rl.problems_per_step} trained on, "
        f"{rl.minibatches} mini-batches",
        *(line for line in told_lengths(read.lengths) if line.startswith("prompt")),
    ]
    return Setting(_model(read.shape, read.sections), gpu, question.gpus, work, constants), told


def _model(shape: Any, sections: Mapping[str, Any]) -> Model:
    sampler = sections["sampler"]
    return Model(
        shape.name,
        shape.parameters,
        shape.layers,
        shape.kv_heads,
        shape.head_size,
        getattr(sampler, "tensor_parallel", 1),
        NUMBER_BYTES[sampler.dtype],
    )


def _lengths(read: RecipeWork, address: str, question: RecipeQuestion) -> tuple[LogNormal | MeasuredGroups, list[str]]:
    most = read.sections["rl"].max_response_tokens
    if question.mean_tokens is not None:
        if question.mean_tokens > most:
            raise UserError(
                f"--mean-tokens {question.mean_tokens:g} is more than rl.max_response_tokens, {most}: lower it"
            )
        return _spread(question.mean_tokens, most), [f"responses: {question.mean_tokens:.0f} tokens on average (given)"]
    table = question.data / "rollouts" / f"{address.partition('@')[2]}.parquet"
    if table.is_file():
        found = _measured_groups(table)
        return found, [f"responses: those of {len(found.groups)} groups in {table}"]
    measured = read.lengths.responses.get(address)
    if measured is None:
        raise UserError(
            "no lengths of responses are known: run the recipe first, name the data of a finished run "
            "with --data, or give --mean-tokens"
        )
    told = f"responses: {measured:.0f} tokens on average (measured), spread as in the paper"
    return _spread(measured, most), [told]


def _spread(mean: float, most: int) -> LogNormal:
    return LogNormal.of_mean(min(mean, 0.98 * most), PAPER_SIGMA, most)


def _measured_groups(table: Path) -> MeasuredGroups:
    from pyarrow import ArrowException, parquet

    groups: dict[tuple[int, str], list[int]] = {}
    try:
        columns = parquet.read_table(table, columns=["step", "problem_id", "response_tokens"]).to_pydict()
    except (ArrowException, OSError) as error:
        raise UserError(f"{table} is no table of rollouts ({error}): name another run's data with --data") from None
    for step, problem, tokens in zip(*columns.values(), strict=True):
        groups.setdefault((step, problem), []).append(max(1, tokens))
    if not groups:
        raise UserError(f"{table} holds no rollouts: name another run's data with --data, or give --mean-tokens")
    return MeasuredGroups(tuple(tuple(group) for group in groups.values()))
