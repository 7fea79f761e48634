"""The torch trainer on policies and other models: updates, clipping, checkpoints, invalid numbers, Muon."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.policy_folders import load_config
from stages.engines.trainers.params import TorchTrainerParams
from stages.engines.trainers.torch_trainer import Float32Muon, TorchTrainer, allocate_state
from stages.foundations.errors import UserError
from tests.engines.policies.test_forward_probe import GPT2, write_family
from tests.fakes.engine_params import ADAMW, MUON, TORCH_TRAINER
from tests.fakes.small_models import LESSONS, REWARD, Rows

BOTH = pytest.mark.parametrize("optimizer", [ADAMW, MUON], ids=["adamw", "muon"])
BATCHES = [pack([TokenSequence([5, 6, 7], [8, 9])]), pack([TokenSequence([10], [11, 12, 13]), TokenSequence([3], [4])])]


def likelihood(statistics, batch):
    return -(statistics.logprobs * batch.response_mask).sum() / 6, {"tokens": batch.response_mask.sum(), "t_max": 1.0}


def make(policy, optimizer=ADAMW, **changes):
    params = TORCH_TRAINER.model_copy(update=changes)
    return TorchTrainer(params, optimizer, 1.0, language_model(policy, params))


def make_trainer(model, optimizer=ADAMW):
    return TorchTrainer(TORCH_TRAINER, optimizer, 1.0, model)


def weights_of(trainer):
    return {name: weight.clone() for name, weight in trainer.named_weights()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def broken_off_and_resumed(make, step, folder):
    """Returns a trainer after four steps, and one that continued from a checkpoint after two."""
    straight, broken_off, resumed = make(), make(), make()
    for trainer, steps in ((straight, 4), (broken_off, 2)):
        for _ in range(steps):
            step(trainer)
    folder.mkdir()
    broken_off.save_checkpoint(folder)
    resumed.load_checkpoint(folder)
    for _ in range(2):
        step(resumed)
    return straight, resumed


@BOTH
def test_updates_lower_the_loss_and_report_sums(policy, optimizer):
    trainer = make(policy, optimizer)
    updates = [trainer.update(BATCHES, likelihood, 1.0) for _ in range(5)]
    assert updates[-1].loss < updates[0].loss
    assert updates[0].diagnostics == {"tokens": 6.0, "t_max": 1.0}


def test_gradient_checkpointing_changes_no_number(policy):
    one = make(policy).update(BATCHES, likelihood, 1.0)
    other = make(policy, gradient_checkpointing=True).update(BATCHES, likelihood, 1.0)
    assert one == other


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_of_a_policy_is_off(tmp_path, checkpointing):
    """GPT-2 drops a tenth of its activations in torch's training mode, by torch's global random stream."""
    config = load_config(write_family(tmp_path, "GPT2", GPT2))
    assert config.attn_pdrop and config.embd_pdrop and config.resid_pdrop
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
        trained.append((updates, weights_of(trainer)))
    (one, weights), (other, same) = trained
    assert one == other
    assert_same(weights, same)


def test_gradient_checkpointing_computes_layers_again(policy):
    """Their activations are not kept: each layer runs once forward and once backward."""
    trainer, runs = make(policy, gradient_checkpointing=True), []
    trainer.model.module.model.layers[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    trainer.update(BATCHES[:1], likelihood, 1.0)
    trainer.evaluate(BATCHES[0])
    assert len(runs) == 2 + 1


@pytest.mark.parametrize(
    ("optimizer", "dtype"), [(ADAMW, "float32"), (MUON, "float32"), (ADAMW, "mixed"), (MUON, "mixed")]
)
def test_a_checkpoint_continues_bit_for_bit(policy, tmp_path, optimizer, dtype):
    straight, resumed = broken_off_and_resumed(
        lambda: make(policy, optimizer, dtype=dtype),
        lambda trainer: trainer.update(BATCHES, likelihood, 0.7),
        tmp_path / "checkpoint",
    )
    assert_same(straight.learned, resumed.learned)
    assert_same(weights_of(straight), weights_of(resumed))


def test_mixed_precision_learns_as_float32_where_bfloat16_stands_still(policy, tmp_path):
    """At 1e-6 an update is below half a step of bfloat16 for nearly every weight: only float32 masters keep it."""
    slow = ADAMW.model_copy(update={"learning_rate": 1e-6, "weight_decay": 0.0})
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
        TorchTrainerParams.model_validate(TORCH_TRAINER.model_dump() | {"dtype": "bfloat16"})


@BOTH
def test_state_that_is_made_at_the_start_changes_no_update(policy, optimizer):
    usual, early = make(policy, optimizer), make(policy, optimizer)
    for one in early.optimizers:
        allocate_state(one)
    assert all(early.optimizers[-1].state.values())
    for _ in range(3):
        assert usual.update(BATCHES, likelihood, 1.0) == early.update(BATCHES, likelihood, 1.0)
    assert_same(usual.learned, early.learned)


LESSON = pytest.mark.parametrize("lesson", LESSONS.values(), ids=LESSONS)


@LESSON
def test_the_loss_goes_down(lesson):
    trainer = make_trainer(lesson.model())
    losses = [trainer.update(lesson.micro_batches, lesson.loss, 1.0).loss for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]


def test_one_step_raises_the_score_of_the_preferred_above_the_other():
    (pair,) = [batch for batch in REWARD.micro_batches if len(batch.first) == 3]
    trainer = make_trainer(REWARD.model())
    before = trainer.evaluate(pair)
    trainer.update([pair], REWARD.loss, 0.01)
    after = trainer.evaluate(pair)
    assert not after[0].requires_grad
    assert ((after[0] - after[1]) > (before[0] - before[1])).all()


@LESSON
def test_the_gradient_is_that_of_the_whole_batch_in_plain_torch(lesson):
    model = lesson.model()
    whole = Rows(
        *(torch.cat(parts) for parts in zip(*((b.first, b.second) for b in lesson.micro_batches), strict=True))
    )
    share, _ = lesson.loss(model.forward(model.module, whole), whole)
    norm = nn.utils.get_total_norm(torch.autograd.grad(share, list(model.module.parameters())))
    update = make_trainer(lesson.model()).update(lesson.micro_batches, lesson.loss, 1.0)
    assert update.loss == pytest.approx(float(share.detach()), rel=1e-5)
    assert update.gradient_norm == pytest.approx(float(norm), rel=1e-4)


@LESSON
def test_a_checkpoint_of_another_model_continues_bit_for_bit(lesson, tmp_path):
    straight, resumed = broken_off_and_resumed(
        lambda: make_trainer(lesson.model()),
        lambda trainer: trainer.update(lesson.micro_batches, lesson.loss, 1.0),
        tmp_path / "checkpoint",
    )
    assert_same(weights_of(straight), weights_of(resumed))


@LESSON
def test_a_model_is_saved_as_it_says(lesson, tmp_path):
    trainer = make_trainer(lesson.model())
    trainer.update(lesson.micro_batches, lesson.loss, 1.0)
    trainer.save_model(tmp_path)
    assert_same(load_file(tmp_path / "model.safetensors"), weights_of(trainer))


def test_muon_takes_the_matrices_between_the_ends():
    trainer = make_trainer(REWARD.model(), MUON)
    muon, adamw = trainer.optimizers
    weights = dict(trainer.model.module.named_parameters())
    assert [id(weight) for weight in muon.param_groups[0]["params"]] == [id(weights["2.weight"])]
    rest = {id(weight) for name, weight in weights.items() if name != "2.weight"}
    assert {id(weight) for weight in adamw.param_groups[0]["params"]} == rest


def test_muon_without_a_matrix_is_refused_with_the_remedy():
    with pytest.raises(UserError, match="no layer of the model is a matrix"):
        make_trainer(LESSONS["denoising"].model(), MUON)


SHAPES = [(4, 4), (12, 5), (5, 12)]


def weights_with_gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    return weights, lambda: [
        setattr(weight, "grad", torch.randn(weight.shape, generator=generator)) for weight in weights
    ]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_muon_on_a_cpu_goes_where_torchs_goes_but_for_the_rounding(seed):
    (ours, draw_ours), (torchs, draw_torchs) = weights_with_gradients(seed), weights_with_gradients(seed)
    before = [weight.detach().clone() for weight in ours]
    one, other = (Float32Muon(ours, lr=0.02, weight_decay=0.1), torch.optim.Muon(torchs, lr=0.02, weight_decay=0.1))
    for _ in range(4):
        draw_ours(), draw_torchs()
        one.step(), other.step()
    for weight, peer, start in zip(ours, torchs, before, strict=True):
        assert (weight - peer).norm() < 0.02 * (weight - start).norm()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_is_the_quintic_of_the_singular_values(shape):
    """The independent computation: each singular value passes through the polynomial five times, in float64."""
    weight = torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    gradient = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    weight.grad = gradient.clone()
    Float32Muon([weight], lr=1.0, weight_decay=0.0).step()
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    expected = left @ torch.diag(values) @ right * max(1, shape[0] / shape[1]) ** 0.5
    assert torch.allclose(-weight.detach(), expected, atol=1e-10)


def test_a_weight_without_a_gradient_stays_and_a_gradient_of_zeros_is_no_nan():
    weights, draw = weights_with_gradients(0)
    draw()
    weights[0].grad = None
    weights[1].grad = torch.zeros_like(weights[1])
    before = [weight.detach().clone() for weight in weights]
    Float32Muon(weights, lr=0.02, weight_decay=0.0).step()
    assert torch.equal(weights[0], before[0]) and torch.equal(weights[1], before[1])
    assert torch.isfinite(weights[2]).all() and not torch.equal(weights[2], before[2])
