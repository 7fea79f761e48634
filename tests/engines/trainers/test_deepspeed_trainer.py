"""Real DeepSpeed on CPU: one process, and two ranks of torchrun over gloo, compared with the torch trainer."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stages.engines.policies.language_model import language_model
from stages.engines.trainers.deepspeed_trainer import DeepspeedTrainer
from stages.engines.trainers.process_group import ProcessGroup
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.foundations.errors import UserError
from tests.engines.deepspeed_ranks import (
    MAX_NORM,
    UPDATES,
    critic_lesson,
    deepspeed_params,
    deepspeed_trainer,
    is_same,
    lora_lesson,
    micro_batches,
    sampler_set_lesson,
    snapshot,
    weighted_loss,
)
from tests.fakes.engine_params import ADAMW, MUON, TORCH_TRAINER
from tests.fakes.small_models import LESSONS, REWARD
from tests.fakes.tiny_policy import write_tiny_policy

# Searched, not imported: every worker collects this file, and the import takes three seconds.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
ROOT = Path(__file__).resolve().parents[3]
LINEAR = torch.nn.functional.linear


@pytest.fixture(scope="module")
def reference(untied):
    """Returns updates and final weights of the torch trainer in one process."""
    trainer = TorchTrainer(TORCH_TRAINER, ADAMW, MAX_NORM, language_model(untied, TORCH_TRAINER))
    updates = []
    for step in range(UPDATES):
        batches = [batch for batch in micro_batches(step) if batch.response_mask.any()]
        updates.append(trainer.update(batches, weighted_loss, 1.0))
    assert max(update.gradient_norm for update in updates) > MAX_NORM, "clipping is to be part of the comparison"
    return updates, snapshot(trainer)


@pytest.fixture(scope="module")
def two_ranks(untied, tmp_path_factory):
    """Returns the reports of both ranks and the folder to which they wrote."""
    out = tmp_path_factory.mktemp("two-ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = [str(ROOT / "tests/engines/deepspeed_ranks.py"), str(untied), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RETRACE_TRACKING": "off"}
    done = subprocess.run(command + script, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in (0, 1)], out


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_two_ranks_train_and_save_like_one_process(two_ranks, reference, zero_stage):
    (report, other_rank), out = two_ranks
    updates, weights = reference
    entry = report[str(zero_stage)]
    assert entry["losses"] == pytest.approx([update.loss for update in updates], abs=2e-6)
    assert entry["norms"] == pytest.approx([update.gradient_norm for update in updates], rel=2e-6)
    for shown, update in zip(entry["diagnostics"], updates, strict=True):
        assert shown == pytest.approx(update.diagnostics, rel=1e-5)
    trained = load_file(out / f"weights-{zero_stage}.safetensors")
    assert trained.keys() == weights.keys()
    gaps = torch.cat([(trained[name] - weight).abs().flatten() for name, weight in weights.items()])
    # Adam turns the rounding of almost zero gradients into steps of some size: few, and small compared with 3e-3.
    assert gaps.max() < 1e-4
    assert gaps.mean() < 1e-7
    assert is_same(trained, load_file(out / f"policy-{zero_stage}" / "model.safetensors"))
    assert (out / f"policy-{zero_stage}" / "tokenizer.json").is_file()
    for name in ("losses", "norms", "diagnostics"):
        assert entry[name] == other_rank[str(zero_stage)][name], "ranks must report the same"


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 2, 3])
@pytest.mark.parametrize("promise", ["resumes_exactly", "refuses_broken_loss", "refuses_uneven_counts"])
def test_two_ranks_keep_their_promises(two_ranks, zero_stage, promise):
    reports, _ = two_ranks
    assert [report[str(zero_stage)][promise] for report in reports] == [True, True]


MADE = {"lora": lora_lesson, "critic": critic_lesson, "sampler_set": sampler_set_lesson}
WITHOUT_PEFT = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 2, 3])
@pytest.mark.parametrize("name", [*LESSONS, "critic", "sampler_set", pytest.param("lora", marks=WITHOUT_PEFT)])
def test_two_ranks_learn_every_other_lesson(two_ranks, untied, zero_stage, name):
    """Models that are no language models, a critic, the sampler's tokens, and LoRA, which ZeRO 3 does not have."""
    if name == "lora" and zero_stage == 3:
        return
    lesson = MADE[name](untied, TORCH_TRAINER) if name in MADE else LESSONS[name]
    alone = TorchTrainer(TORCH_TRAINER, ADAMW, MAX_NORM, lesson.model())
    expected = [alone.update(lesson.micro_batches, lesson.loss, 1.0) for _ in range(UPDATES)]
    for report in two_ranks[0]:
        entry = report[str(zero_stage)][name]
        assert entry["losses"] == pytest.approx([update.loss for update in expected], abs=2e-6)
        assert entry["norms"] == pytest.approx([update.gradient_norm for update in expected], rel=1e-5)
        for shown, update in zip(entry["diagnostics"], expected, strict=True):
            assert shown == pytest.approx(update.diagnostics, rel=1e-5)
        assert name in MADE or entry["losses"] == sorted(entry["losses"], reverse=True)
        assert entry["resumes_exactly"]


@pytest.mark.parametrize(("zero_stage", "dtype"), [(0, "float32"), (2, "float32"), (1, "mixed"), (3, "mixed")])
def test_one_process_needs_no_launcher(untied, reference, zero_stage, dtype):
    updates, weights = reference
    trainer = deepspeed_trainer(zero_stage, untied, dtype)
    own = [trainer.update(micro_batches(step), weighted_loss, 1.0) for step in range(UPDATES)]
    exactness = 1e-5 if dtype == "float32" else 0.02
    assert [update.loss for update in own] == pytest.approx([update.loss for update in updates], abs=exactness)
    for name, weight in snapshot(trainer).items():
        torch.testing.assert_close(weight.float(), weights[name], atol=exactness, rtol=0, msg=name)
    trainer.close()
    assert not torch.distributed.is_initialized()
    assert torch.nn.functional.linear is LINEAR  # otherwise all later models of this process would round differently


@pytest.mark.parametrize("loaded", ["all of it", "none of it", "a part that failed"])
def test_ranks_that_never_used_deepspeed_leave_all_the_same(monkeypatch, loaded):
    import deepspeed

    if loaded != "all of it":
        for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
            monkeypatch.delitem(sys.modules, name)
    if loaded == "a part that failed":
        monkeypatch.setitem(sys.modules, "deepspeed", type(deepspeed)("deepspeed"))
    ProcessGroup().leave()
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(("tie", "gradient_checkpointing"), [(True, True), (False, False)])
def test_weights_that_zero_3_spreads_are_whole_only_where_they_are_used(
    tmp_path, tie, gradient_checkpointing, monkeypatch
):
    """The head is used outside its module; here it is too large to be left whole on every rank."""
    moved, move = [], torch.nn.Module.to

    def counted(module, *where, **how):
        moved.append(sum(weight.numel() for weight in module.parameters()))
        return move(module, *where, **how)

    policy = write_tiny_policy(tmp_path, tie=tie, hidden=416, layers=1)
    batches = micro_batches(3)
    expected = TorchTrainer(TORCH_TRAINER, ADAMW, MAX_NORM, language_model(policy, TORCH_TRAINER))
    params = deepspeed_params(3).model_copy(update={"gradient_checkpointing": gradient_checkpointing})
    model = language_model(policy, params)  # probed whole, if a device has room for it
    monkeypatch.setattr(torch.nn.Module, "to", counted)
    trainer = DeepspeedTrainer(params, ADAMW, MAX_NORM, model)
    assert not any(moved), "the reference is moved whole; no GPU ever holds all that is spread"
    head = trainer.model.module.get_output_embeddings().weight
    assert head.numel() == 0 < head.ds_numel
    theirs, ours = expected.evaluate(batches[4]), trainer.evaluate(batches[4])
    for name in ("logprobs", "entropy", "sum_squared_probs", "outside"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for _ in range(2):
        theirs, ours = (one.update(batches, weighted_loss, 1.0) for one in (expected, trainer))
        assert ours.loss == pytest.approx(theirs.loss, abs=2e-6)
        assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-5)
    trainer.close()


@pytest.mark.parametrize(
    ("params", "optimizer", "said"),
    [
        (deepspeed_params(2), MUON, "trainer.kind: torch"),
        (deepspeed_params(0, "mixed"), ADAMW, "zero_stage: 1"),
        (deepspeed_params(0).model_copy(update={"offload_optimizer": True}), ADAMW, "zero_stage to 1, 2 or 3"),
    ],
)
def test_what_deepspeed_cannot_do_is_refused_with_a_remedy(params, optimizer, said):
    with pytest.raises(UserError, match=said):
        DeepspeedTrainer(params, optimizer, MAX_NORM, REWARD.model())


@pytest.mark.parametrize(
    ("before", "after", "dtypes"),
    [(2, 1, ("float32", "float32")), (1, 3, ("mixed", "float32")), (0, 2, ("float32", "mixed"))],
)
def test_a_checkpoint_serves_another_zero_stage_and_precision(untied, tmp_path, before, after, dtypes):
    trainer = deepspeed_trainer(before, untied, dtypes[0])
    trainer.update(micro_batches(0), weighted_loss, 1.0)
    trainer.save_checkpoint(tmp_path)
    trained = {name: weight.clone() for name, weight in trainer.learned_weights()}
    expected = trainer.update(micro_batches(1), weighted_loss, 1.0)
    trainer.close()
    other = deepspeed_trainer(after, untied, dtypes[1])
    other.load_checkpoint(tmp_path)
    assert is_same(trained, dict(other.learned_weights()))
    own = other.update(micro_batches(1), weighted_loss, 1.0)
    assert own.loss == pytest.approx(expected.loss, abs=1e-5 if set(dtypes) == {"float32"} else 0.02)
    other.close()


def test_a_checkpoint_of_another_model_is_refused(untied, tmp_path):
    trainer = deepspeed_trainer(2, untied)
    trainer.save_checkpoint(tmp_path)
    trainer.close()
    other = DeepspeedTrainer(deepspeed_params(2), ADAMW, MAX_NORM, REWARD.model())
    with pytest.raises(KeyError, match="the checkpoint lacks elements"):
        other.load_checkpoint(tmp_path)
    other.close()
