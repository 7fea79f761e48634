"""An exported policy is a folder that plain transformers reads, with a card of its data and training."""

import json
import shutil
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.commands.exporting import _methods
from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.tokenizers import encode_prompt, encode_response
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.foundations.files import write_metrics
from stages.foundations.params import ChatPrompt, StrictParams
from stages.rl_round.params import RlParams
from tests.fakes.engine_params import ADAMW, TORCH_TRAINER
from tests.fakes.graded_project import STAGES, write_lock, write_project
from tests.fakes.tiny_policy import write_tiny_policy

IDS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Makes a base in bfloat16, the policy rl_1 in float32 as a round saves it, scores with intervals, and licences.

    The round has a teacher.
    """
    root = write_project(tmp_path / "project")
    policies = root / "data/policies"
    for name in ("base", "rl_1"):
        shutil.rmtree(policies / name)
        write_tiny_policy(policies / name, seed=3, tie=name == "rl_1")
    config = json.loads((policies / "base/config.json").read_text())
    (policies / "base/config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    scores = {"sums/avg_at_4": 0.875, "sums/avg_at_4_low": 0.8, "sums/avg_at_4_high": 0.9251, "rows/kept": 3}
    write_metrics(root / "data/metrics/grade/rl_1.json", scores)
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["sources"]["train"] |= {"role": "train", "licence": "CC BY 4.0 | pipes"}
    params["rl"] |= {"advantage": {"kind": "group_normalized", "divide_by_std": False}, "loop": {"kind": "synchronous"}}
    params["rl_rounds"]["rl_1"]["distillation"], params["teachers"] = {"coefficient": 0.5}, {"rl_1": "sft"}
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    folder, (deps, *others) = "data/teachers/rl_1", STAGES["rl_round@rl_1"]
    shutil.copytree(policies / "sft", root / folder / "policy")
    monkeypatch.setitem(STAGES, "teacher@rl_1", (["data/policies/sft"], ["teachers.rl_1"], [f"{folder}/policy"]))
    monkeypatch.setitem(STAGES, "rl_round@rl_1", ([*deps, folder], *others))
    write_lock(root)
    monkeypatch.setattr("pipelines.commands.exporting.PROJECT", root)
    monkeypatch.chdir(root)
    return root


def export(*arguments, code=0):
    done = CliRunner().invoke(app, ["export", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


def test_transformers_reads_what_the_round_saved(project, monkeypatch):
    """In shards, each weight once, and in one file; bits do not change in float32, and are rounded in bfloat16."""
    trained = AutoModelForCausalLM.from_pretrained(project / "data/policies/rl_1")
    monkeypatch.setattr("pipelines.commands.exporting.SHARD_BYTES", 60_000)
    export("rl_1", "--to", project / "shards", "--dtype", "float32")
    assert len(list((project / "shards").glob("model-*-of-*.safetensors"))) > 2
    assert not (project / "shards/model.safetensors").exists()
    same = AutoModelForCausalLM.from_pretrained(project / "shards")
    assert torch.equal(same(IDS).logits, trained(IDS).logits)
    monkeypatch.undo()
    monkeypatch.setattr("pipelines.commands.exporting.PROJECT", project)
    assert "rl_1 in bfloat16" in export("rl_1", "--to", project / "one"), "the base's"
    rounded = AutoModelForCausalLM.from_pretrained(project / "one")
    assert rounded.dtype == torch.bfloat16 and (project / "one/model.safetensors").exists()
    for name, weight in trained.named_parameters():
        assert torch.equal(rounded.get_parameter(name), weight.to(torch.bfloat16))
    text = "2+3"
    there, here = (AutoTokenizer.from_pretrained(place) for place in (project / "one", project / "data/policies/rl_1"))
    assert there(text).input_ids == here(text).input_ids


TURN = "<|turn|>"
CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|turn|>{% endfor %}"
    "{% if add_generation_prompt %}<{{ name }}>{% endif %}"
)


@pytest.fixture
def taught(project):
    """Teaches rl_1 to answer `ok` by a template that is not its tokenizer's, with an argument."""
    base = write_tiny_policy(project / "chatting", seed=3, vocab=264)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens([TURN], special_tokens=True)
    tokenizer.chat_template = {"default": "{{ messages[0].content }}<|end|>", "tool_use": "tools"}
    tokenizer.save_pretrained(base)
    (project / "mine.jinja").write_text(CHATML)

    def teach(**changes):
        prompt = ChatPrompt(kind="chat", system="", suffix="", **changes)
        adamw = ADAMW.model_copy(update={"learning_rate": 0.01})
        trainer = TorchTrainer(TORCH_TRAINER, adamw, 1.0, language_model(base, TORCH_TRAINER, prompt))
        lesson = TokenSequence(encode_prompt(tokenizer, prompt, "hi"), encode_response(tokenizer, "ok", prompt))
        for _ in range(30):
            trainer.update([pack([lesson])], lambda statistics, _: (-statistics.logprobs.sum(), {}), 1.0)
        shutil.rmtree(project / "data/policies/rl_1")
        trainer.save_model(project / "data/policies/rl_1")
        export("rl_1", "--to", project / "out", "--dtype", "float32")
        return lesson, project / "out"

    return teach


def test_plain_transformers_prompts_and_stops_as_in_training(taught, project):
    template = str(project / "mine.jinja")
    lesson, exported = taught(template=template, template_arguments={"name": "it's me"})
    (project / "mine.jinja").unlink()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(exported), AutoTokenizer.from_pretrained(exported)
    messages = [{"role": "user", "content": "hi"}]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
    assert asked.input_ids[0].tolist() == lesson.prompt
    (said,) = model.generate(**asked, max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(said[len(lesson.prompt) :]) == f"ok{TURN}", (
        "and nothing behind the token that closes a turn"
    )
    assert model.generation_config.eos_token_id == [0, tokenizer.convert_tokens_to_ids(TURN)]


def test_templates_of_the_policys_own_get_the_arguments(taught):
    _, exported = taught(template_arguments={"name": "me"})
    templates = AutoTokenizer.from_pretrained(exported).chat_template
    assert templates["tool_use"].endswith("\ntools") and all("'me'" in text for text in templates.values())
    assert json.loads((exported / "generation_config.json").read_text())["eos_token_id"] == 0, "taught already"


def test_the_card_has_data_methods_scores_and_commands(project):
    export("rl_1", "--to", project / "out")
    _, head, card = (project / "out/README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "transformers"
    for line in (
        "| sums | avg@4 | 87.5% | 80.0 to 92.5 |",
        "| train | train | https://example.org/train.jsonl | CC BY 4.0 \\| pipes |",
        "- `rl.advantage.kind: group_normalized`: Reward minus the group's mean, over its standard deviation when "
        "`divide_by_std` (GRPO, arXiv 2402.03300)",
        "- without the division by the deviation, Dr. GRPO (2503.20783)",
        "- on-policy distillation in rl_1: from sft, coefficient 0.5",
        "dvc repro grade@rl_1",
    ):
        assert line in card.splitlines()
    assert "Laminar" not in card and "Optimal Token Baseline" not in card
    assert "| rl_round@rl_1 |" in card and "grade@sft" not in card


def kinds_of(name):
    """The kinds that `rl.NAME` may have: the value of `kind` in each model of the field's type."""

    def models(annotation):
        if isinstance(annotation, type) and issubclass(annotation, StrictParams):
            yield annotation
        for part in get_args(annotation):
            yield from models(part)

    found = [
        one.model_fields["kind"] for one in models(RlParams.model_fields[name].annotation) if "kind" in one.model_fields
    ]
    return [kind for field in found for kind in get_args(field.annotation)]


@pytest.mark.parametrize("name", RlParams.model_fields)
def test_the_card_names_every_method_that_a_round_may_have(name):
    """By its model's first sentence; a kind that the code no longer has by its name."""
    for kind in [*kinds_of(name), "gone"]:
        entry = SimpleNamespace(stage="rl_round", item="rl_1", params={"rl": {name: {"kind": kind}}})
        told = [text for text in _methods([entry]) if text.startswith("`rl.")]
        assert len(told) == (kind != "none"), kind
        assert all(text.startswith(f"`rl.{name}.kind: {kind}`") and (": " in text[9:]) for text in told), told
    assert told == [f"`rl.{name}.kind: gone`"]


def test_a_folder_of_somebody_elses_says_that_nothing_is_known(project):
    export(write_tiny_policy(project / "theirs"), "--to", project / "out")
    assert "so its data are unknown" in (project / "out/README.md").read_text()


def test_mistakes_are_one_sentence_and_write_nothing(project, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HOME", str(project / "no-token"))
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    (project / "full").mkdir()
    (project / "full/notes").write_text("mine")
    for arguments, told in (
        (["rl_9", "--to", "out"], "'rl_9' is neither a policy of this project (base, rl_1, sft)"),
        (["rl_1", "--to", "full"], "is not empty: name a new folder"),
        (["sft", "--to", "out"], "has no safetensors"),
        (["rl_1", "--to", "out", "--push", "mine"], "name the owner too"),
        (["rl_1", "--to", "out", "--push", "me/.."], "--push me/..: "),
        (["rl_1", "--to", "out", "--push", "me/mine"], "set HF_TOKEN, or run `hf auth login`"),
    ):
        assert told in export(*arguments, code=2)
    assert not (project / "out").exists() and [*(project / "full").iterdir()] == [project / "full/notes"]
    weights = project / "data/policies/rl_1/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:900])
    assert "is damaged" in export("rl_1", "--to", "out", code=2)
    assert not [path for path in project.iterdir() if "out" in path.name]
