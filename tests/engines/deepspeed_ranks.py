"""The program that `test_deepspeed_trainer.py` runs on two ranks of torchrun: `deepspeed_ranks.py POLICY OUT`.

Writes the results of each ZeRO stage as JSON and safetensors, which the test checks.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from stages.observe.command import run_command
from stages.observe.quick_imports import quick_imports

with quick_imports():
    import torch
    from safetensors.torch import save_file

    from stages.engines.policies.language_model import language_model
    from stages.engines.policies.lora import with_lora
    from stages.engines.policies.packing import ResponseBatch, TokenSequence, pack
    from stages.engines.policies.value_model import value_model
    from stages.engines.trainers.deepspeed_trainer import DeepspeedTrainer
    from stages.engines.trainers.params import DeepspeedTrainerParams, TrainerParams
    from stages.engines.trainers.protocol import LossFunction, replace_folder_together
    from tests.fakes.engine_params import ADAMW, LORA
    from tests.fakes.small_models import LESSONS, Lesson

MAX_NORM = 1.0
UPDATES = 4
RESPONSES = (3, 1, 2, 0, 4)
"""Responses of each micro-batch of a step: five micro-batches for two ranks, one without any; a sixth fills up."""


def deepspeed_params(zero_stage: int, dtype: str = "float32") -> DeepspeedTrainerParams:
    return DeepspeedTrainerParams(
        kind="deepspeed",
        zero_stage=zero_stage,
        dtype=dtype,
        offload_optimizer=False,
        threads=1,
        micro_batch_tokens=64,
        gradient_checkpointing=False,
    )


def deepspeed_trainer(zero_stage: int, policy: Path, dtype: str = "float32") -> DeepspeedTrainer:
    params = deepspeed_params(zero_stage, dtype)
    return DeepspeedTrainer(params, ADAMW, MAX_NORM, language_model(policy, params))


def micro_batches(step: int, rank: int = 0, world_size: int = 1) -> list[ResponseBatch]:
    """Returns this rank's share of the step's micro-batches, uneven and partly empty."""
    generator = torch.Generator().manual_seed(step)

    def tokens(low: int, high: int) -> list[int]:
        length = int(torch.randint(low, high, (), generator=generator))
        return torch.randint(2, 258, (length,), generator=generator).tolist()

    batches = []
    for count in RESPONSES:
        sequences = [TokenSequence(tokens(2, 6), tokens(3, 20)) for _ in range(count)]
        weights = torch.randn(count, generator=generator) if count else torch.ones(1)
        batches.append(replace(pack(sequences or [TokenSequence([3], [])]), fields={"weight": weights}))
    batches.append(replace(pack([TokenSequence([3], [])]), fields={"weight": torch.ones(1)}))
    return batches[rank::world_size]


def weighted_loss(statistics, batch):
    loss = -(statistics.logprobs * batch.response_mask * batch.fields["weight"][:, None]).sum() / 100
    shown = {
        "entropy": (statistics.entropy * batch.response_mask).sum().detach() / 100,
        "tokens_max": batch.response_mask.sum(),
    }
    return loss, shown


def value_loss(values, batch):
    mask = batch.response_mask
    return ((values - batch.fields["targets"]).square() * mask).sum() / 100, {"tokens_max": mask.sum()}


def snapshot(trainer: DeepspeedTrainer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in trainer.named_weights()}


def is_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def resumes_exactly(
    make: Callable[[], DeepspeedTrainer], trainer: DeepspeedTrainer, batches: Sequence, loss: LossFunction, folder: Path
) -> bool:
    """Returns True if a fresh trainer continues from a checkpoint as `trainer` does; closes both."""
    with replace_folder_together(trainer, folder) as written:
        trainer.save_checkpoint(written)
    trainer.update(batches, loss, 1.0)
    uninterrupted = snapshot(trainer)
    trainer.close()
    resumed = make()
    resumed.load_checkpoint(folder)
    resumed.update(batches, loss, 1.0)
    answer = is_same(uninterrupted, snapshot(resumed))
    resumed.close()
    return answer


def learn(lesson: Lesson, zero_stage: int, folder: Path) -> dict:
    """Returns the results of a few updates on a model that is not a language model."""

    def make() -> DeepspeedTrainer:
        return DeepspeedTrainer(deepspeed_params(zero_stage), ADAMW, MAX_NORM, lesson.model())

    trainer = make()
    batches = lesson.micro_batches[trainer.rank :: trainer.world_size]
    updates = [trainer.update(batches, lesson.loss, 1.0) for _ in range(UPDATES)]
    return {
        "losses": [update.loss for update in updates],
        "norms": [update.gradient_norm for update in updates],
        "diagnostics": [update.diagnostics for update in updates],
        "resumes_exactly": resumes_exactly(make, trainer, batches, lesson.loss, folder),
    }


def lora_lesson(policy: Path, params: TrainerParams) -> Lesson:
    """Returns a policy with LoRA, and its training data."""
    return Lesson(lambda: with_lora(language_model(policy, params), LORA, 0), micro_batches(0), weighted_loss)


def critic_lesson(policy: Path, params: TrainerParams) -> Lesson:
    """Returns a critic, and its training data: the value to learn is the weight of each response."""
    batches = [
        replace(batch, fields={"targets": batch.fields["weight"][:, None] * batch.response_mask})
        for batch in micro_batches(0)
    ]
    return Lesson(lambda: value_model(policy, params), batches, value_loss)


def sampler_set_lesson(policy: Path, params: TrainerParams) -> Lesson:
    """Returns a policy whose statistics are over the sampler's tokens: the sampled one and two others of five."""
    generator = torch.Generator().manual_seed(3)

    def with_sets(batch: ResponseBatch) -> ResponseBatch:
        sets = []
        for tokens, mask in zip(batch.response_ids, batch.response_mask.bool(), strict=True):
            ids = torch.randint(2, 258, (int(mask.sum()), 4), generator=generator)
            ids = torch.cat([tokens[mask][:, None], ids], dim=-1)
            logprobs = torch.tensor([-0.7, -1.2, -2.0, -torch.inf, -torch.inf]).expand(ids.shape)
            sets.append(torch.cat([logprobs, ids.float()], dim=-1))
        return replace(batch, sampler_sets=tuple(sets), likeliest=5)

    batches = [with_sets(batch) for batch in micro_batches(0)]
    return Lesson(lambda: language_model(policy, params), batches, weighted_loss)


def refuses_broken_loss(trainer: DeepspeedTrainer) -> bool:
    """Returns True if a loss that is invalid on one rank raises on both and does not change the weights."""

    def broken_on_rank_1(statistics, batch):
        loss, shown = weighted_loss(statistics, batch)
        return loss * (float("nan") if trainer.rank == 1 else 1.0), shown

    before = snapshot(trainer)
    try:
        trainer.update(micro_batches(8, trainer.rank, trainer.world_size), broken_on_rank_1, 1.0)
    except FloatingPointError:
        return is_same(before, snapshot(trainer))
    return False


def refuses_uneven_counts(trainer: DeepspeedTrainer) -> bool:
    try:
        trainer.update(micro_batches(7)[: trainer.rank + 1], weighted_loss, 1.0)
    except ValueError as error:
        return "1 to 2 micro-batches" in str(error)
    return False


def main(policy: Path, out: Path) -> None:
    report = {}
    for zero_stage in (2, 1, 3):
        trainer = deepspeed_trainer(zero_stage, policy)
        ranks = (trainer.rank, trainer.world_size)
        updates = [trainer.update(micro_batches(step, *ranks), weighted_loss, 1.0) for step in range(UPDATES)]
        weights = snapshot(trainer)
        trainer.save_model(out / f"policy-{zero_stage}")
        entry = {
            "losses": [update.loss for update in updates],
            "norms": [update.gradient_norm for update in updates],
            "diagnostics": [update.diagnostics for update in updates],
            "refuses_broken_loss": refuses_broken_loss(trainer),
            "refuses_uneven_counts": refuses_uneven_counts(trainer),
        }
        entry["resumes_exactly"] = resumes_exactly(
            partial(deepspeed_trainer, zero_stage, policy),
            trainer,
            micro_batches(9, *ranks),
            weighted_loss,
            out / f"checkpoint-{zero_stage}",
        )
        lessons = dict(LESSONS)
        if zero_stage < 3 and importlib.util.find_spec("peft"):
            lessons["lora"] = lora_lesson(policy, deepspeed_params(zero_stage))
        lessons["critic"] = critic_lesson(policy, deepspeed_params(zero_stage))
        lessons["sampler_set"] = sampler_set_lesson(policy, deepspeed_params(zero_stage))
        for name, lesson in lessons.items():
            entry[name] = learn(lesson, zero_stage, out / f"checkpoint-{zero_stage}-{name}")
        report[zero_stage] = entry
        if ranks[0] == 0:
            save_file(weights, out / f"weights-{zero_stage}.safetensors")
        else:
            (out / "rank-1.json").write_text(json.dumps(report))
    if ranks[0] == 0:
        (out / "rank-0.json").write_text(json.dumps(report))


if __name__ == "__main__":
    run_command(lambda: main(Path(sys.argv[1]), Path(sys.argv[2])))
