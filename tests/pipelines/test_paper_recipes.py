"""The recipes of published runs: pinned, planned, and run as miniatures, with equal kinds and small numbers."""

import copy
import hashlib
import json
import re
import shutil
from pathlib import Path

import pandas
import pytest
import yaml

from pipelines.graph.recipes import read_recipe
from pipelines.graph.schema import check_values
from pipelines.planning.plan import PlanRequest, make_plan
from tests.fakes.graph_in_process import run_graph
from tests.fakes.taught_policy import PROBLEMS

PROJECT = Path(__file__).resolve().parents[2]
RECIPES = [
    "grpo-qwen2.5-1.5b",
    "dapo-qwen2.5-7b",
    "dapo-qwen2.5-32b",
    "demystify-llama3.1-8b",
    "demystify-qwen2.5-math-7b",
    "demystify-qwen2.5-math-7b-zero",
    "otb-qwen3-8b",
    "otb-tools-qwen3-8b",
    "scalerl-qwen3-8b",
    "trm-qwen3-8b",
    "dvp-qwen3-8b",
    "laminar-qwen2.5-7b",
]
COMMIT = re.compile(r"/[0-9a-f]{40}/")
HERE = {"device": "cpu", "dtype": "float32", "threads": 1}
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for message in messages %}"
    "{{ message.content }}{{ eos_token if message.role == 'assistant' else ' ' }}"
    "{% endfor %}"
)
DAPO_PROMPT = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\nRemember to put your answer on its "
    'own line after "Answer:".'
)
FRUITS = ("apples", "pears", "plums", "figs")


@pytest.mark.parametrize("name", RECIPES)
def test_weights_and_problems_cannot_change_unnoticed(name):
    params = read_recipe(PROJECT, name)
    assert re.fullmatch("[0-9a-f]{40}", params["base"]["revision"])
    for source, entry in params["sources"].items():
        origin = entry["from"]
        assert origin["kind"] == "hub" or (COMMIT.search(origin["url"]) and origin["sha256"]), source


@pytest.mark.parametrize("name", RECIPES)
def test_the_plan_says_that_it_fits_and_what_it_costs(name):
    sections = check_values(read_recipe(PROJECT, name), name)
    launch = sections["launch"]
    gpus = launch.nodes * launch.gpus_per_node
    replicas = gpus // sections["sampler"].tensor_parallel
    plan = make_plan(PROJECT, name, PlanRequest("H100", gpus, replicas=replicas, price=2.5))
    assert plan.recipe == name and plan.problems == [] and plan.cost > 0
    assert max(stage.seconds for stage in plan.stages) < launch.hours * 3600


def text_of(origin, number):
    """Returns a row in the format of the source's file, with a sum or a word problem in it."""
    names = origin["fields"]
    problem, answer = PROBLEMS[number % len(PROBLEMS)]
    row = {}
    if isinstance(names["problem"], dict) and names["problem"]["kind"] == "choices":
        return {"question": problem, "options": [answer, "none of these"], "answer": "A"}
    if isinstance(names["problem"], dict):
        row["prompt"] = [{"role": "user", "content": DAPO_PROMPT.format(problem)}]
        row["reward_model"] = {"ground_truth": answer, "style": "rule"}
        return row
    row[names["problem"]] = problem
    if isinstance(names["answer"], dict) and names["answer"]["kind"] == "listed":
        row[names["answer"]["field"]] = [answer]
    elif isinstance(names["answer"], dict):
        row["answer"] = f"So it is.\n#### {answer}"
        row["question"] = problem
    else:
        row[names["answer"]] = answer
    if isinstance(names["solution"], str):
        field, _, is_list = names["solution"].partition(".")
        worked = f"\\boxed{{{answer}}}"
        row[field] = [worked, "no"] if is_list else worked
    for field, values in origin["only"].items():
        row[field] = values[0]
    return row


def word_problem(row, origin, number):
    """Returns the row as a problem about fruits: a benchmark problem must not be among the training problems."""
    name = origin["fields"]["problem"]
    name = name["field"] if isinstance(name, dict) else name
    sentence = f"A basket holds {number + 3} {FRUITS[number % 4]} and a child takes {number + 1}. How many are left?"
    return {**row, name: sentence}


def small_source(entry, folder, name, place, count):
    """Writes the source's file with a few rows, in its format and fields: every `count`-th problem."""
    origin = dict(entry["from"])
    rows = [text_of(origin, number) for number in range(place, len(PROBLEMS), count)]
    if entry["role"] == "benchmark":
        rows = [word_problem(row, origin, number) for number, row in enumerate(rows[:2])]
    file = folder / name
    if origin["format"] == "parquet":
        pandas.DataFrame(rows).to_parquet(file)
    else:
        lines = [json.dumps(row) for row in rows]
        file.write_text("\n".join(lines) if origin["format"] == "jsonl" else f"[{','.join(lines)}]")
    for gone in ("url", "repository", "revision", "file"):
        origin.pop(gone, None)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return {**entry, "from": {**origin, "kind": "local", "path": str(file), "sha256": sha256}}


def miniature(name, taught, folder):
    """Returns the recipe with the trained policy as base, small files as sources and small numbers, on a CPU."""
    params = copy.deepcopy(read_recipe(PROJECT, name))
    shutil.copytree(taught / "sft", folder / "taught")
    told = json.loads((folder / "taught/tokenizer_config.json").read_text())
    told["chat_template"] = TEMPLATE
    (folder / "taught/tokenizer_config.json").write_text(json.dumps(told))
    (folder / "taught/chat_template.jinja").unlink(missing_ok=True)
    params["base"] = {"kind": "folder", "path": str(folder / "taught")}
    params["launch"] |= {"nodes": 1, "gpus_per_node": 1, "command": {"kind": "python"}}
    if params["prompt"]["kind"] == "chat":
        params["prompt"]["suffix"] = ""
    else:
        params["prompt"]["template"] = "{problem} "
    if "environment" in params["prompt"]:
        params["prompt"]["environment"] |= {"max_observation_tokens": 4}
        params["prompt"]["environment"]["workers"] |= {"processes": 1}
    if "forced_end" in params["prompt"]:
        params["prompt"]["forced_end"] |= {"thinking_tokens": [4, 5], "text": "; "}
    # In turns: processes of their own are tried elsewhere.
    params["rl"]["loop"] = {"kind": "synchronous"}
    params["sampler"] = {"kind": "torch", "max_sequences": 16, **HERE}
    params["trainer"] = {"kind": "torch", "micro_batch_tokens": 256, "gradient_checkpointing": True, **HERE}
    params["verifier"]["memory_mib"] = 512
    trains = [source for source, entry in params["sources"].items() if entry["role"] == "train"]
    params["sources"] = {
        source: small_source(entry, folder, source, trains.index(source) if source in trains else 0, len(trains))
        for source, entry in params["sources"].items()
    }
    params["curate"]["validation_rows"] = 0
    params["curate"]["deduplication"]["near_duplicates"] = None  # all these sums are
    rl = params["rl"]
    rl |= {"problems_per_step": 2, "group_size": 4, "max_response_tokens": 12, "minibatches": min(2, rl["minibatches"])}
    if rl["overlong"]["kind"] != "none":
        rl["overlong"]["buffer_tokens"] = 2
    if rl["dynamic_sampling"]["kind"] != "none":
        rl["dynamic_sampling"]["max_draws"] = 2
    if "repetition_penalty" in rl.get("study", {}):
        rl["study"]["repetition_penalty"]["n"] = 3
    for one in params["rl_rounds"].values():
        one |= {"steps": 1, "warmup_steps": 0}
    if "sft" in params:
        params["sft"] |= {"steps": 2, "batch_demonstrations": 2, "warmup_steps": 1, "max_sequence_tokens": 64}
        params["sft"] |= {"validate_every_steps": 2, "checkpoint_every_steps": 2}
        params["demonstrate"] |= {"validation_rows": 1, "max_response_tokens": 24}
    params["respond"] |= {"samples": 2, "max_response_tokens": 12, "max_problems": 2, "problems_at_once": 4}
    params["grade"] |= {"bootstrap_draws": 100, "pass_at_k": [2]}
    return params


RUN = {  # recipe -> stages that another one's miniature runs with the same kinds
    "grpo-qwen2.5-1.5b": ("respond", "grade", "report"),
    "dapo-qwen2.5-32b": ("respond", "grade", "report"),
    "demystify-llama3.1-8b": (),
    "otb-qwen3-8b": ("respond", "grade", "report"),
    "otb-tools-qwen3-8b": ("grade", "report"),
    "scalerl-qwen3-8b": ("respond", "grade", "report"),
    "trm-qwen3-8b": ("respond", "grade", "report"),
    "dvp-qwen3-8b": ("respond", "grade", "report"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_miniature_runs_every_stage(name, taught, tmp_path):
    params = miniature(name, taught, tmp_path)
    check_values(params, name)
    done = run_graph(tmp_path, params, but=RUN[name])
    assert "rl_round@rl_1" in done and ("sft" in done) == ("sft" in params)
    metrics = json.loads((tmp_path / "data/metrics/rl_round/rl_1.json").read_text())
    assert metrics["rollouts/drawn"] >= 8 and (tmp_path / "data/policies/rl_1/model.safetensors").exists()
    if "report" in done:  # none of these recipes has a web branch
        page = (tmp_path / "reports/index.html").read_text()
        assert "collect_web" not in page.partition("The parameters")[0]


def kinds(params, path=""):
    """Returns every `kind` of a recipe, by its path; sources by their form, whatever their names."""
    if isinstance(params, list):
        return {found for one in params for found in kinds(one, path)}
    if not isinstance(params, dict):
        return set()
    own = {(path, params["kind"])} if isinstance(params.get("kind"), str) else set()
    names = {name: f"{path}.{'*' if path == '.sources' else name}" for name in params}
    return own.union(*(kinds(value, names[name]) for name, value in params.items()))


def test_what_has_no_miniature_of_its_own_has_the_kinds_of_one_that_has():
    for name, other in (
        ("dapo-qwen2.5-7b", "dapo-qwen2.5-32b"),
        ("demystify-qwen2.5-math-7b", "demystify-llama3.1-8b"),
    ):
        own, run = read_recipe(PROJECT, name), read_recipe(PROJECT, other)
        assert set(own) == set(run) and kinds({**own, "launch": {}}) == kinds({**run, "launch": {}})


PAGE = (PROJECT / "docs/reference/papers.md").read_text(encoding="utf-8")
TABLES = {
    part.partition("`")[0]: re.findall(r"^\| `([\w.]+)` \| .+ \| `(.+)` \|.*\|$", part, flags=re.MULTILINE)
    for part in PAGE.split("\n## `")[1:]
}


@pytest.mark.parametrize("name", TABLES)
def test_the_table_beside_the_paper_has_the_values_of_the_recipe(name):
    rows, params = TABLES[name], read_recipe(PROJECT, name)
    section = PAGE.split(f"\n## `{name}`")[1].split("\n## ")[0]
    assert len(rows) == section.count("\n| `") >= 8, "a row was not understood"
    for setting, here in rows:
        value = params
        for part in setting.split("."):
            value = value[part]
        assert yaml.safe_load(here) == value, setting


SECTIONS = ("base", "sft", "rl", "rl_rounds", "respond")
NO_SETTING = re.compile(r"base\.revision|.*\.problem_slice\..*|.*_every_steps")


def of_no_paper(name):
    """Returns the first recipe below that has no table: what it sets is not a choice of the paper."""
    while name in TABLES:
        name = yaml.safe_load((PROJECT / f"pipelines/recipes/{name}.yaml").read_text())["extends"].partition(".yaml")[0]
    return name


def changed(own, below, name):
    """Yields the names of values that differ from those of `below`; a mapping of another kind is one value."""
    there = below if isinstance(below, dict) else {}
    if isinstance(own, dict) and own.get("kind") in (None, there.get("kind")):
        for key, value in own.items():
            yield from changed(value, there.get(key), f"{name}.{key}")
    elif own != below and not NO_SETTING.fullmatch(name):
        yield name


@pytest.mark.parametrize("name", sorted({*TABLES} - {"imagereward-blip-large"}))  # it extends nothing
def test_the_table_leaves_out_no_setting_that_is_not_of_the_recipe_of_no_paper_below(name):
    own, below, rows = read_recipe(PROJECT, name), read_recipe(PROJECT, of_no_paper(name)), dict(TABLES[name])
    settings = [one for part in SECTIONS if part in own for one in changed(own[part], below.get(part), part)]
    # A row covers what is inside it; a mapping of another kind is covered by any row inside it.
    covered = {one for one in settings for row in rows if f"{one}.".startswith(f"{row}.") or row.startswith(f"{one}.")}
    assert [one for one in settings if one not in covered] == []


def test_every_recipe_with_the_name_of_a_paper_has_a_table():
    assert {*RECIPES, "imagereward-blip-large"} - {"grpo-qwen2.5-1.5b"} == set(TABLES)
