"""The torch trainer: updates, clipping, checkpoints, refusal of broken numbers."""

import pytest
import torch

from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.trainers.params import AdamwParams, MuonParams, TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from tests.fakes.tiny_policy import write_tiny_policy

PARAMS = TorchTrainerParams(
    kind="torch",
    device="cpu",
    dtype="float32",
    threads=1,
    micro_batch_tokens=64,
    gradient_checkpointing=False,
)
ADAMW = AdamwParams(kind="adamw", learning_rate=0.01, beta1=0.9, beta2=0.95, weight_decay=0.1)
MUON = MuonParams(
    kind="muon", learning_rate=0.02, adamw_learning_rate=0.003, beta1=0.9, beta2=0.98, weight_decay=0.01
)
BATCHES = [
    pack([TokenSequence([5, 6, 7], [8, 9])]),
    pack([TokenSequence([10], [11, 12, 13]), TokenSequence([3], [4])]),
]


def likelihood(statistics, batch):
    return -(statistics.logprobs * batch.response_mask).sum() / 6, {
        "tokens": batch.response_mask.sum(),
        "t_max": 1.0,
    }


@pytest.fixture
def policy(tmp_path):
    write_tiny_policy(tmp_path / "policy")
    return tmp_path / "policy"


def make(policy, optimizer=ADAMW, max_gradient_norm=1.0, **changes):
    params = PARAMS.model_copy(update=changes)
    return TorchTrainer(params, optimizer, max_gradient_norm, language_model(policy, params))


@pytest.mark.parametrize("optimizer", [ADAMW, MUON], ids=["adamw", "muon"])
def test_updates_lower_the_loss_and_report_sums(policy, optimizer):
    trainer = make(policy, optimizer)
    updates = [trainer.update(BATCHES, likelihood, 1.0) for _ in range(5)]
    assert updates[-1].loss < updates[0].loss
    assert updates[0].diagnostics == {"tokens": 6.0, "t_max": 1.0}


def test_micro_batches_add_up_to_the_whole_batch(policy):
    whole = pack(
        [TokenSequence([5, 6, 7], [8, 9]), TokenSequence([10], [11, 12, 13]), TokenSequence([3], [4])]
    )
    apart, together = make(policy), make(policy)
    one, other = apart.update(BATCHES, likelihood, 1.0), together.update([whole], likelihood, 1.0)
    assert one.loss == pytest.approx(other.loss, abs=1e-5)
    assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-4)


def test_gradient_checkpointing_changes_no_number(policy):
    one = make(policy).update(BATCHES, likelihood, 1.0)
    other = make(policy, gradient_checkpointing=True).update(BATCHES, likelihood, 1.0)
    assert one == other


@pytest.mark.parametrize("optimizer", [ADAMW, MUON], ids=["adamw", "muon"])
def test_a_checkpoint_continues_bit_for_bit(policy, tmp_path, optimizer):
    straight = make(policy, optimizer)
    for _ in range(4):
        straight.update(BATCHES, likelihood, 0.7)
    broken_off = make(policy, optimizer)
    for _ in range(2):
        broken_off.update(BATCHES, likelihood, 0.7)
    (tmp_path / "checkpoint").mkdir()
    broken_off.save_checkpoint(tmp_path / "checkpoint")
    resumed = make(policy, optimizer)
    resumed.load_checkpoint(tmp_path / "checkpoint")
    for _ in range(2):
        resumed.update(BATCHES, likelihood, 0.7)
    for (name, a), (_, b) in zip(straight.named_weights(), resumed.named_weights(), strict=True):
        assert torch.equal(a, b), name


def test_a_broken_loss_leaves_the_weights_alone(policy):
    trainer = make(policy)
    before = {name: weight.clone() for name, weight in trainer.named_weights()}

    def broken(statistics, batch):
        return statistics.logprobs.sum() * float("nan"), {}

    with pytest.raises(FloatingPointError, match="loss nan"):
        trainer.update(BATCHES, broken, 1.0)
    assert all(torch.equal(before[name], weight) for name, weight in trainer.named_weights())


def test_a_zero_learning_rate_changes_nothing(policy):
    trainer = make(policy)
    before = {name: weight.clone() for name, weight in trainer.named_weights()}
    trainer.update(BATCHES, likelihood, 0.0)
    assert all(torch.equal(before[name], weight) for name, weight in trainer.named_weights())


def test_a_saved_policy_gives_the_same_statistics(policy, tmp_path):
    trainer = make(policy)
    trainer.update(BATCHES, likelihood, 1.0)
    trainer.save_model(tmp_path / "saved")
    again = make(tmp_path / "saved")
    assert torch.equal(trainer.evaluate(BATCHES[0]).logprobs, again.evaluate(BATCHES[0]).logprobs)
