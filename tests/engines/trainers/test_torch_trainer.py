"""The torch trainer: updates, clipping, checkpoints, refusal of broken numbers."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.policy_folders import save_policy
from stages.engines.trainers.params import AdamwParams, MuonParams, TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer, allocate_state
from tests.fakes.tiny_policy import VOCABULARY_TOKENS, byte_tokenizer, write_tiny_policy

PARAMS = TorchTrainerParams(
    kind="torch", device="cpu", dtype="float32", threads=1, micro_batch_tokens=64, gradient_checkpointing=False
)
ADAMW = AdamwParams(kind="adamw", learning_rate=0.01, beta1=0.9, beta2=0.95, weight_decay=0.1)
MUON = MuonParams(kind="muon", learning_rate=0.02, adamw_learning_rate=0.003, beta1=0.9, beta2=0.98, weight_decay=0.01)
BATCHES = [pack([TokenSequence([5, 6, 7], [8, 9])]), pack([TokenSequence([10], [11, 12, 13]), TokenSequence([3], [4])])]


def likelihood(statistics, batch):
    return -(statistics.logprobs * batch.response_mask).sum() / 6, {"tokens": batch.response_mask.sum(), "t_max": 1.0}


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
    whole = pack([TokenSequence([5, 6, 7], [8, 9]), TokenSequence([10], [11, 12, 13]), TokenSequence([3], [4])])
    apart, together = make(policy), make(policy)
    one, other = apart.update(BATCHES, likelihood, 1.0), together.update([whole], likelihood, 1.0)
    assert one.loss == pytest.approx(other.loss, abs=1e-5)
    assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-4)


def test_gradient_checkpointing_changes_no_number(policy):
    one = make(policy).update(BATCHES, likelihood, 1.0)
    other = make(policy, gradient_checkpointing=True).update(BATCHES, likelihood, 1.0)
    assert one == other


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_of_a_policy_is_off(tmp_path, checkpointing):
    """GPT-2 drops a tenth of its activations in torch's training mode, by torch's global random stream."""
    config = GPT2Config(vocab_size=VOCABULARY_TOKENS, n_embd=32, n_layer=2, n_head=2, n_positions=64, eos_token_id=0)
    assert config.attn_pdrop and config.embd_pdrop and config.resid_pdrop
    torch.manual_seed(0)
    save_policy(GPT2LMHeadModel(config), byte_tokenizer(), tmp_path)
    seen, trained = [], []

    def noted(statistics, batch):
        seen.append(statistics.logprobs.detach())
        return likelihood(statistics, batch)

    for state in (1, 2):
        trainer = make(tmp_path, gradient_checkpointing=checkpointing)
        evaluated = [trainer.evaluate(batch).logprobs for batch in BATCHES]
        torch.manual_seed(state)
        updates = [trainer.update(BATCHES, noted, 1.0) for _ in range(2)]
        assert all(map(torch.equal, seen[-4:-2], evaluated))
        trained.append((updates, {name: weight.clone() for name, weight in trainer.named_weights()}))
    (one, weights), (other, same) = trained
    assert one == other and all(torch.equal(weights[name], same[name]) for name in weights)


def test_gradient_checkpointing_computes_layers_again(policy):
    """Their activations are not kept: each layer runs once forwards and once backwards."""
    trainer, runs = make(policy, gradient_checkpointing=True), []
    trainer.model.module.model.layers[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    trainer.update(BATCHES[:1], likelihood, 1.0)
    trainer.evaluate(BATCHES[0])
    assert len(runs) == 2 + 1


@pytest.mark.parametrize(
    ("optimizer", "dtype"), [(ADAMW, "float32"), (MUON, "float32"), (ADAMW, "mixed"), (MUON, "mixed")]
)
def test_a_checkpoint_continues_bit_for_bit(policy, tmp_path, optimizer, dtype):
    straight = make(policy, optimizer, dtype=dtype)
    for _ in range(4):
        straight.update(BATCHES, likelihood, 0.7)
    broken_off = make(policy, optimizer, dtype=dtype)
    for _ in range(2):
        broken_off.update(BATCHES, likelihood, 0.7)
    (tmp_path / "checkpoint").mkdir()
    broken_off.save_checkpoint(tmp_path / "checkpoint")
    resumed = make(policy, optimizer, dtype=dtype)
    resumed.load_checkpoint(tmp_path / "checkpoint")
    for _ in range(2):
        resumed.update(BATCHES, likelihood, 0.7)
    for name, weight in straight.learned.items():
        assert torch.equal(weight, resumed.learned[name]), name
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


def test_mixed_precision_learns_as_float32_where_bfloat16_stands_still(policy, tmp_path):
    """At 1e-6 an update is below half a step of bfloat16 for nearly every weight: only float32 masters keep it."""
    slow = AdamwParams(kind="adamw", learning_rate=1e-6, beta1=0.9, beta2=0.95, weight_decay=0.0)
    falls, moved = {}, {}
    for dtype in ("float32", "mixed"):
        trainer = make(policy, slow, dtype=dtype)
        before = {name: weight.detach().clone() for name, weight in trainer.learned.items()}
        for _ in range(60):
            trainer.update(BATCHES, likelihood, 1.0)
        changed = torch.cat([(weight != before[name]).flatten() for name, weight in trainer.learned.items()])
        moved[dtype] = changed.float().mean().item()
        trainer.save_model(tmp_path / dtype)
        falls[dtype] = loss_in_float32(policy) - loss_in_float32(tmp_path / dtype)
    assert min(moved.values()) >= 0.99
    assert falls["mixed"] == pytest.approx(falls["float32"], rel=0.01)


def loss_in_float32(folder):
    trainer = make(folder)
    return sum(float(likelihood(trainer.evaluate(batch), batch)[0]) for batch in BATCHES)


def test_a_mixed_policy_is_saved_in_float32_and_sampled_in_what_it_computes_in(policy, tmp_path):
    trainer = make(policy, dtype="mixed")
    trainer.update(BATCHES, likelihood, 1.0)
    trainer.save_model(tmp_path / "saved")
    saved = load_file(tmp_path / "saved/model.safetensors")
    for name, weight in trainer.named_weights():
        assert weight.dtype == torch.bfloat16 and saved[name].dtype == torch.float32
        assert torch.equal(weight, saved[name].bfloat16())
    assert any((saved[name] != saved[name].bfloat16()).any() for name in saved)


def test_pure_bfloat16_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"do not learn.*`mixed` computes in bfloat16"):
        TorchTrainerParams.model_validate(PARAMS.model_dump() | {"dtype": "bfloat16"})


@pytest.mark.parametrize("optimizer", [ADAMW, MUON], ids=["adamw", "muon"])
def test_state_that_is_made_at_the_start_changes_no_update(policy, optimizer):
    usual, early = make(policy, optimizer), make(policy, optimizer)
    for one in early.optimizers:
        allocate_state(one)
    assert all(early.optimizers[-1].state.values())
    for _ in range(3):
        assert usual.update(BATCHES, likelihood, 1.0) == early.update(BATCHES, likelihood, 1.0)
    for name, weight in usual.learned.items():
        assert torch.equal(weight, early.learned[name]), name
