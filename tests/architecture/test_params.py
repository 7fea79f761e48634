"""Parameter files: every recipe is whole and valid, the one in use is the laptop's, and Python holds no default."""

import functools
import re
from pathlib import Path

import pytest
import yaml

from pipelines.graph.recipes import read_recipe, recipe_text
from pipelines.graph.schema import check_params, check_values, section_models
from stages.foundations.errors import UserError
from stages.foundations.files import load_yaml
from stages.foundations.params import StrictParams
from stages.rl_round.params import StudyParams

PROJECT = Path(__file__).resolve().parents[2]
CHATS = {
    "role": "chat",
    "licence": "MIT",
    "from": {"kind": "local", "path": "chats.csv", "sha256": "0" * 64, "format": "csv", "fields": "messages"}
    | {"only": {}, "max_rows": None},
}
RECIPES = sorted((PROJECT / "pipelines" / "recipes").glob("*.yaml"))


def all_models(model):
    for child in model.__subclasses__():
        yield child
        yield from all_models(child)


@functools.cache
def own_models():
    section_models()  # imports them all
    return [model for model in all_models(StrictParams) if not model.__module__.startswith("tests")]


def test_the_params_in_use_are_the_laptop_recipe():
    assert (PROJECT / "params.yaml").read_bytes() == (PROJECT / "pipelines/recipes/laptop.yaml").read_bytes()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid(recipe):
    values = read_recipe(PROJECT, recipe.stem)
    assert set(check_values(values, recipe.stem)) <= set(section_models())
    assert values == load_yaml(recipe_text(PROJECT, recipe.stem))


def values_of(tree):
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [tree] if isinstance(tree, str) else [value for child in children for value in values_of(child)]


def test_no_recipe_names_a_path_outside_the_project():
    # Paths in a cluster's pods are absolute.
    named = {path.name: values_of({**read_recipe(PROJECT, path.stem), "launch": {}}) for path in RECIPES}
    assert all(named.values())
    outside = re.compile(r"(\.\./|/|~|file:|[A-Za-z]:\\).*")
    assert not {name: found for name, all_of in named.items() if (found := [v for v in all_of if outside.match(v)])}


def test_only_what_may_be_left_out_has_a_default_and_unknown_keys_are_refused():
    """What may be left out is off where it is: every such field is None."""
    assert len(own_models()) > 30
    for model in own_models():
        assert model.model_config["extra"] == "forbid" and model.model_config["frozen"], model
        with_default = {name: field.default for name, field in model.model_fields.items() if not field.is_required()}
        optional = {"study", "replicas", "reward", "compile", "adapter", "sources", "template", "template_arguments"}
        optional |= {"arguments", "sandbox", "weights", "weight", "stop", "thought", "evaluation", "verifier", "filter"}
        optional |= {"environment", "schedule", "advantage_whitening", "verified", "config", "clamped"}
        optional |= {"ema_ramp", "draw", "reset_every_steps", "resets_optimizer", "forced_end", "distillation"}
        optional |= {"aesthetic", "batch_normalized", "top_entropy_fraction", "entropy_bonus"}
        allowed = set(with_default) if model is StudyParams else optional
        assert set(with_default) <= allowed and not any(with_default.values()), f"{model.__name__}: {with_default}"


def test_every_section_is_read_by_a_stage():
    graph = yaml.safe_load((PROJECT / "dvc.yaml").read_text())["stages"]
    read = {str(name).split(".")[0] for stage in graph.values() for name in stage.get("do", stage).get("params", [])}
    read |= set(re.findall(r"\$\{(\w+)[.}]", (PROJECT / "dvc.yaml").read_text()))
    assert set(section_models()) <= read


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda p: p.pop("sft"), r"rl_round@rl_1 needs data/policies/sft, .*: add section `sft`, which makes it"),
        (lambda p: p.pop("verifier"), "verifier: missing section, which curate reads"),
        (lambda p: p.pop("rl_rounds"), "rl: no stage of this recipe reads it"),
        (lambda p: p.pop("policies"), "policies: missing section; dvc.yaml interpolates it"),
        (lambda p: p.update(sftt={}), "sftt: unknown section"),
        (lambda p: p["rl"].update(clip_hihg=1), r"rl\.clip_hihg: unknown key"),
        (lambda p: p["rl"].update(problem_per_step=1), r"rl\.problem_per_step: .*did you mean problems_per_step\?"),
        (lambda p: p["rl"]["optimizer"].update(learning_rat=1), r"learning_rat: .*did you mean learning_rate\?"),
        (
            lambda p: p["policies"].append("rl_9"),
            "respond@rl_9 needs data/policies/rl_9, .* there are base, sft, rl_1, rl_2, rl_3",
        ),
        (
            lambda p: p["rl_rounds"]["rl_1"].update(
                reward={"kind": "cosine", "r0_correct": 2.0, "rL_correct": 1.0, "r0_wrong": -10.0}
                | {"rL_wrong": 0.0, "exceeded": -10.0}
            ),
            r"rl_rounds\.rl_1\.reward: reward\.kind cosine has its own value for long responses",
        ),
        (lambda p: p["rl_rounds"]["rl_1"].update(start_from="rl_7"), "rl_round@rl_1 needs data/policies/rl_7"),
        (lambda p: p["rl_rounds"]["rl_1"].update(start_from="rl_1"), "which no other stage of this recipe makes"),
        (lambda p: p["grade"].update(pass_at_k=[64]), r"pass_at_k \[64\] exceeds respond\.samples 8"),
        (lambda p: p["launch"].update(command={"kind": "torchrun"}, gpus_per_node=2), "set trainer.kind deepspeed"),
        (
            lambda p: p.update(
                launch={**p["launch"], "command": {"kind": "torchrun"}, "gpus_per_node": 3},
                sampler={**read_recipe(PROJECT, "gsm8k-smollm2")["sampler"], "tensor_parallel": 2},
            ),
            "launch starts 3 ranks, and sampler.tensor_parallel 2 does not divide them",
        ),
        (
            lambda p: p["rl_rounds"]["rl_1"].update(sources=["arithmetic_trian"]),
            r"rl_rounds\.rl_1\.sources: `arithmetic_trian` is none of `sources` with role train, which are arithmetic_",
        ),
        (
            lambda p: p["rl_rounds"]["rl_1"].update(problems="web/solutions", sources=["arithmetic_train"]),
            r"`arithmetic_train` is none of `collect_web\.sources`, which are arithmetic_pages",
        ),
        (
            lambda p: p["demonstrate"].update(
                sources=[{"kind": "given", "sources": ["arithmetic_held_out"], "max_rows": None}]
            ),
            r"demonstrate\.sources: `arithmetic_held_out` is none of `sources` with role train",
        ),
        (lambda p: p["sources"].update(chats=CHATS), "role chat needs `prompt.kind: chat`, whose template writes"),
        (
            lambda p: p["sources"].update(chats=CHATS),
            r"sources\.chats: no entry of demonstrate\.sources takes these conversations: add it to one of kind given",
        ),
        (lambda p: p["sources"].update(chats=CHATS | {"role": "train"}), r"sources\.chats: .*role chat takes a file"),
        (lambda p: p["sources"].pop("arithmetic_held_out"), "none has role `benchmark`"),
        (lambda p: p["report"].update(baseline_policy="x"), "must be one of policies"),
    ],
)
def test_mistakes_are_told_before_anything_runs(tmp_path, change, told):
    params = yaml.safe_load((PROJECT / "params.yaml").read_text())
    change(params)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.raises(UserError, match=told):
        check_params(tmp_path / "params.yaml")
