"""`rl.reference_kl.reset_every_steps`: the reference and the optimizer start again from the policy of that step."""

from argparse import Namespace

import pytest
import torch
from pydantic import ValidationError

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.policies.language_model import PolicyUnderAdapters, ReferencePolicy
from stages.engines.trainers.params import TorchTrainerParams
from stages.rl_round.learners import with_trainer
from stages.rl_round.loop.training_step import train_step
from stages.rl_round.params import RoundParams
from stages.rl_round.records import Batch, Group
from stages.rl_round.round import Round
from tests.fakes.engine_params import LORA
from tests.fakes.rounds import NONE, rollout, settings
from tests.fakes.taught_policy import PARAMS
from tests.fakes.tiny_policy import write_tiny_policy

STRONG = {"kind": "k3", "coefficient": 5.0}


def batch_of(step):
    """Returns a batch with a right and a wrong response, which differ from step to step."""
    right = rollout([5 + step, 6, 7], logprobs=[-5.0] * 3)
    wrong = rollout([8, 9 + step], Verdict.WRONG, -1.0, logprobs=[-5.0] * 2)
    group = Group("a", [3, 4], (right, wrong))
    return Batch([group], [group], [], 1, 0, 0, 1.0, 0)


def trained(policy, reference_kl, steps, out=None, **changes):
    """Returns the weights after `steps` of a round, and its reference; `out` gets the policy."""
    rl = settings(
        **{"reference_kl": reference_kl, "overlong": NONE, "minibatches": 1, "dynamic_sampling": NONE, **changes}
    )
    this_round = with_trainer(
        Round(
            name="rl_1",
            seed=0,
            params=rl,
            settings=RoundParams.model_validate({**PARAMS["rl_rounds"]["rl_1"], "warmup_steps": 0}),
            trainer_params=TorchTrainerParams.model_validate(PARAMS["trainer"]),
            paths=Namespace(policy=policy),
            **dict.fromkeys(("sampler_params", "verifier_params", "prompt", "attempt", "tokenizer", "run")),
            problems=(),
        )
    )
    for step in steps:
        train_step(this_round, step, batch_of(step), {})
    if out:
        out.mkdir()
        this_round.trainer.save_model(out)
    return {name: weight.clone() for name, weight in this_round.trainer.named_weights()}, this_round.reference


def is_same(one, other):
    return all(torch.equal(weight, other[name]) for name, weight in one.items())


def test_a_round_with_a_reset_ends_as_two_rounds_of_which_the_second_starts_from_the_first(tmp_path):
    policy = write_tiny_policy(tmp_path / "policy", initializer_range=0.2)
    resetting = {**STRONG, "reset_every_steps": 2}
    whole, _ = trained(policy, {**resetting, "resets_optimizer": True}, range(4))
    trained(policy, STRONG, range(2), tmp_path / "first")
    halves, _ = trained(tmp_path / "first", STRONG, range(2, 4))
    assert is_same(whole, halves)
    without, _ = trained(policy, STRONG, range(4))
    keeping, reference = trained(policy, resetting, range(4))
    assert not is_same(whole, without) and not is_same(whole, keeping) and not is_same(keeping, without)
    assert is_same(trained(policy, resetting, range(2))[0], dict(reference.model.named_parameters()))


def test_a_reference_comes_back_with_every_bit(tmp_path):
    folder = write_tiny_policy(tmp_path / "policy", initializer_range=0.2)
    first, second = (ReferencePolicy.from_folder(folder, "mixed", torch.device("cpu")) for _ in range(2))
    first.take([(name, weight + 1) for name, weight in first.model.named_parameters()])
    first.save(tmp_path)
    second.load(tmp_path)
    assert is_same(first.model.state_dict(), second.model.state_dict())


def test_with_adapters_a_reset_reference_is_a_policy_of_its_own_with_merged_weights(tmp_path):
    pytest.importorskip("peft")
    policy = write_tiny_policy(tmp_path / "policy", initializer_range=0.2)
    _, under = trained(policy, STRONG, range(1), adapter=LORA.model_dump())
    assert isinstance(under, PolicyUnderAdapters)
    two, _ = trained(policy, STRONG, range(2), adapter=LORA.model_dump())
    _, reference = trained(policy, {**STRONG, "reset_every_steps": 2}, range(3), adapter=LORA.model_dump())
    assert is_same(dict(reference.model.named_parameters()), two)


def test_an_optimizer_is_not_reset_without_a_reference():
    with pytest.raises(ValidationError, match="set reset_every_steps, or leave it out"):
        settings(reference_kl={**STRONG, "resets_optimizer": True})
    absent = settings(reference_kl=STRONG)
    assert "reset_every_steps" not in absent.reference_kl.model_dump()
