"""On-policy distillation: a round learns from the log-probs of another policy of the graph."""

import json
import shutil
from argparse import Namespace
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest
import torch

from pipelines.graph.recipes import read_recipe
from pipelines.graph.schema import check_values
from stages.__main__ import main
from stages.engines.policies.language_model import ReferencePolicy, language_model
from stages.engines.samplers.protocol import Episode
from stages.engines.trainers.params import TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.foundations.stage_graph import read_definitions, stages_of
from stages.rl_round.params import DistillationParams
from stages.rl_round.records import Group
from stages.rl_round.round import Round
from stages.rl_round.samples import prepare_samples, training_samples
from stages.rl_round.update import policy_loss
from tests.fakes.rounds import (
    NONE,
    assert_replayed,
    assert_same,
    copied,
    curve,
    kill_after_three_steps,
    replay_params,
    rollout,
    settings,
)
from tests.fakes.step_plans import micro_batches, plan_of
from tests.fakes.taught_policy import PARAMS, rl_flags, write_params
from tests.fakes.tiny_policy import write_tiny_policy

WITHOUT_REWARD = {"kind": "by_verdict", "correct": 0.0, "wrong": 0.0, "unparsed": 0.0}
ALONE = {
    "rl.dynamic_sampling": NONE,
    "rl.overlong": NONE,
    "rl.optimizer.learning_rate": 0.01,
    "rl_rounds.rl_1.steps": 8,
    "rl_rounds.rl_1.reward": WITHOUT_REWARD,
    "rl_rounds.rl_1.distillation": {"coefficient": 1.0},
}


@pytest.fixture
def of_teacher(taught, tmp_path, monkeypatch):
    """The folder of a round whose teacher is `sft`; a function gives the command of a round that starts from `base`."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(taught / "sft", "data/teachers/rl_1/policy")

    def flags(params: Path, out: Path) -> list[str]:
        command = rl_flags(taught, params, out)
        command[command.index("--policy") + 1] = str(taught / "base")
        return command

    return flags


def test_a_round_without_reward_becomes_its_teacher_goes_on_from_its_checkpoint_and_replays(
    of_teacher, tmp_path, monkeypatch
):
    params = write_params(tmp_path / "params.yaml", ALONE)
    main(of_teacher(params, tmp_path / "whole"))
    kls = [row["distillation/reverse_kl"] for row in curve(tmp_path / "whole")]
    # Nearly uniform over 258 tokens against a policy that has learned: several nats a token.
    assert kls[0] > 3 and kls[-1] < kls[0] - 1
    metrics = json.loads((tmp_path / "whole" / "rl_1.json").read_text())
    assert metrics["distillation/reverse_kl_last"] == pytest.approx(kls[-1])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_after_three_steps(patch)
        main(of_teacher(params, tmp_path / "resumed"))
    main(of_teacher(params, tmp_path / "resumed"))
    assert_same(tmp_path / "resumed", tmp_path / "whole")
    again = replay_params(tmp_path, ALONE, copied(tmp_path / "whole", tmp_path / "kept"))
    main(of_teacher(again, tmp_path / "replayed"))
    assert_replayed(tmp_path / "replayed", tmp_path / "whole")
    # A replay with another teacher would train to other weights.
    (tmp_path / "data/teachers/rl_1/policy/a_file_more").touch()
    with pytest.raises(UserError, match=r"teachers\.rl_1"):
        main(of_teacher(again, tmp_path / "other"))


def test_a_teacher_with_other_tokens_and_a_missing_one_are_refused(of_teacher, tmp_path):
    params, file = write_params(tmp_path / "params.yaml", ALONE), Path("data/teachers/rl_1/policy/tokenizer.json")
    tokenizer = json.loads(file.read_text())
    one, other = list(tokenizer["model"]["vocab"])[10:12]
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=r"`teachers\.rl_1` names has another tokenizer .*: name one of the same base"):
        main(of_teacher(params, tmp_path / "out"))
    shutil.rmtree("data/teachers")
    with pytest.raises(UserError, match=r"data/teachers/rl_1/policy does not exist: `dvc repro` makes it"):
        main(of_teacher(params, tmp_path / "out"))


@pytest.fixture
def two_policies(tmp_path):
    """A trainer, and another policy as the teacher."""
    write_tiny_policy(tmp_path / "policy", seed=0)
    write_tiny_policy(tmp_path / "teacher", seed=1)
    params = TorchTrainerParams.model_validate(PARAMS["trainer"])
    trainer = TorchTrainer(params, settings().optimizer, 1.0, language_model(tmp_path / "policy", params))
    return trainer, ReferencePolicy.from_folder(tmp_path / "teacher", "float32", trainer.device)


def observed(one, *spans):
    """Returns the rollout with tokens that a tool wrote."""
    episode = Episode(spans, 1 + len(spans), "", len(spans), 0)
    return replace(one, sample=replace(one.sample, episode=episode))


def logprobs_of(model, prompt, tokens):
    """Returns the log-probs of the tokens after the prompt, by transformers alone."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0].double()
    rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return rows.gather(-1, torch.tensor(tokens)[:, None])[:, 0]


@pytest.mark.parametrize("whitening", [None, "tokens"])
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_each_token_of_the_policy_gets_its_own_share_beside_the_rewards(two_policies, reward, whitening):
    trainer, teacher = two_policies
    rollouts = (rollout([5, 6, 7], reward=reward), observed(rollout([8, 9, 10, 11], reward=-reward), (1, 3)))
    groups, params = [Group("a", [3, 4], rollouts)], settings(minibatches=1, advantage_whitening=whitening)
    plan = plan_of(training_samples(groups, params, 0), params, trainer)
    alone = prepare_samples(groups, plan, params, trainer)
    samples = prepare_samples(groups, plan, params, trainer, None, teacher, DistillationParams(coefficient=0.5))
    gaps = torch.stack(
        [
            torch.nn.functional.pad(one - other, (0, 4 - len(one)))
            for one, other in (
                [logprobs_of(model, [3, 4], row.sample.token_ids) for model in (trainer.model.module, teacher.model)]
                for row in rollouts
            )
        ]
    )
    mask = torch.tensor([[1.0, 1, 1, 0], [1, 0, 0, 1]])
    assert torch.equal(samples.response_mask, mask)
    torch.testing.assert_close(samples.advantages, (alone.advantages - 0.5 * gaps * mask).float(), rtol=1e-4, atol=1e-5)
    assert bool(alone.advantages.any()) == (reward > 0) and samples.advantages[mask.bool()].all()
    (batch,) = micro_batches(samples, params, trainer)
    _, shown = policy_loss(samples, params)(trainer.evaluate(batch), batch)
    assert float(shown["distillation/reverse_kl"]) == pytest.approx(float((gaps * mask).sum()) / 5, abs=1e-5)


def test_the_trainers_of_an_asynchronous_round_find_the_teacher_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = Namespace(policy=Path("data/policies/sft"), problems=Path("data/problems/train.parquet"))
    others = dict.fromkeys((one.name for one in fields(Round) if one.default is MISSING), None)
    sent = Round(**{**others, "paths": paths}, teacher_folder=Path("data/teachers/rl_1/policy")).for_trainer()
    assert sent.teacher_folder == tmp_path / "data/teachers/rl_1/policy"
    assert Round(**{**others, "paths": paths}).for_trainer().teacher_folder is None


def recipe(**changes):
    """Recipe digits with a third round that a policy teaches."""
    given = read_recipe(PROJECT, "digits")
    taught = {**given["rl_rounds"]["rl_plain"], "steps": 10, "distillation": {"coefficient": 1.0}}
    return {**given, "rl_rounds": {**given["rl_rounds"], "small": taught}, "teachers": {"small": "rl_plain"}} | changes


def test_the_graph_has_the_teacher_before_the_round():
    definitions, params = read_definitions(PROJECT / "dvc.yaml"), recipe()
    check_values(params, "x")
    stages = {stage.address: stage for stage in stages_of(definitions, params)}
    teacher, taught, plain = (stages[name] for name in ("teacher@small", "rl_round@small", "rl_round@rl_plain"))
    assert "data/policies/rl_plain" in plain.outs and "data/policies/rl_plain" in teacher.deps
    (made,) = [path for path in teacher.outs if not path.endswith(".json")]
    (folder,) = [path for path in taught.deps if path.startswith("data/teachers/")]
    assert made == f"{folder}/policy" and f"{folder}/" not in " ".join(plain.deps)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"teachers": {}}, r"small\.distillation has no teacher: name a policy, `teachers: \{small: POLICY\}`"),
        ({"teachers": {"small": "sft", "rl_plain": "sft"}}, r"teachers\.rl_plain names a teacher.*or leave it out"),
        ({"teachers": {"small": "rl_9"}}, r"teacher@small needs data/policies/rl_9, which no other stage"),
    ],
)
def test_a_round_without_its_teacher_and_a_teacher_without_its_round_are_refused(changes, told):
    with pytest.raises(UserError, match=told):
        check_values(recipe(**changes), "x")
