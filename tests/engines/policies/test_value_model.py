"""The critic as a model: where it starts, what it shares with the policy, and that both trainers teach it the same."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.value_model import value_model
from stages.engines.trainers.build import build_trainer
from tests.engines.deepspeed_ranks import deepspeed_params, value_loss
from tests.fakes.engine_params import ADAMW, TORCH_TRAINER

SEQUENCES = [TokenSequence([5, 6], [7, 8, 9]), TokenSequence([5], [9, 4, 4, 7], (True, False, True, True))]
TARGETS = torch.tensor([[1.0, 2.0, 3.0, 0.0], [-1.0, 0.0, -2.0, -3.0]])


def lesson():
    return replace(pack(SEQUENCES), fields={"targets": TARGETS})


def test_values_are_those_of_the_state_before_each_token_of_the_policy(untied):
    trainer = build_trainer(TORCH_TRAINER, ADAMW, 1.0, value_model(untied, TORCH_TRAINER))
    batch = lesson()
    assert torch.equal(trainer.evaluate(batch), torch.zeros(2, 4))
    module = trainer.model.module
    with torch.no_grad():
        module.head.weight.copy_(torch.linspace(-1, 1, len(module.head.weight)))
    found = trainer.evaluate(batch)
    for row, sequence in enumerate(SEQUENCES):
        ids = torch.tensor([[*sequence.prompt, *sequence.response]])
        with torch.no_grad():
            states = module.body(input_ids=ids).last_hidden_state[0]
        before = (states @ module.head.weight)[len(sequence.prompt) - 1 : -1]
        is_written = torch.tensor(sequence.is_written or [True] * 3)
        torch.testing.assert_close(found[row, : len(before)], before * is_written, atol=1e-5, rtol=1e-5)


def test_it_starts_as_the_policy_and_shares_nothing_with_it(untied):
    theirs = language_model(untied, TORCH_TRAINER)
    ours = value_model(untied, TORCH_TRAINER)
    bodies = dict(theirs.module.base_model.named_parameters()), dict(ours.module.body.named_parameters())
    assert all(torch.equal(weight, bodies[1][name]) for name, weight in bodies[0].items())
    names = [name for name, _ in ours.named_parameters()]
    assert names == [*(f"body.{name}" for name in bodies[0]), "head.weight"], "the policy's own head is left out"
    trainer = build_trainer(TORCH_TRAINER, ADAMW, 1.0, ours)
    losses = [trainer.update([lesson()], value_loss, 1.0).loss for _ in range(40)]
    assert losses[-1] < 0.2 * losses[0]
    fresh = language_model(untied, TORCH_TRAINER).module.state_dict()
    assert all(torch.equal(weight, fresh[name]) for name, weight in theirs.module.state_dict().items())
    assert not torch.equal(bodies[1]["embed_tokens.weight"], bodies[0]["embed_tokens.weight"]), "the body learns too"


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize(("zero_stage", "dtype"), [(3, "float32"), pytest.param(2, "mixed", marks=pytest.mark.slow)])
def test_deepspeed_teaches_a_critic_beside_a_policy(untied, tmp_path, zero_stage, dtype):
    """Two engines in one process. The critic resumes from its checkpoint bit for bit, and ends before the policy."""
    expected = build_trainer(TORCH_TRAINER, ADAMW, 1.0, value_model(untied, TORCH_TRAINER))
    params = deepspeed_params(zero_stage, dtype)
    of_policy = build_trainer(params, ADAMW, 1.0, language_model(untied, params))
    critic, exactness = (
        build_trainer(params, ADAMW, 1.0, value_model(untied, params)),
        0.05 if dtype == "mixed" else 1e-4,
    )
    for _ in range(4):
        theirs, ours = (one.update([lesson()], value_loss, 1.0) for one in (expected, critic))
        assert ours.loss == pytest.approx(theirs.loss, abs=exactness)
    torch.testing.assert_close(critic.evaluate(lesson()), expected.evaluate(lesson()), atol=2 * exactness, rtol=0)
    assert of_policy.evaluate(lesson()).logprobs.isfinite().all()
    critic.save_checkpoint(tmp_path)
    losses = [critic.update([lesson()], value_loss, 1.0).loss for _ in range(2)]
    critic.close()
    resumed = build_trainer(params, ADAMW, 1.0, value_model(untied, params))
    resumed.load_checkpoint(tmp_path)
    assert [resumed.update([lesson()], value_loss, 1.0).loss for _ in range(2)] == losses
    resumed.close()
    of_policy.close()
    assert not torch.distributed.is_initialized()
