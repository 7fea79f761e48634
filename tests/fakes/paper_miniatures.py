"""Miniatures of the recipes of published runs: equal kinds, small files as sources and small numbers, on a CPU."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil

from pipelines.graph.recipes import read_recipe
from stages.foundations.machine import PROJECT
from tests.fakes.taught_policy import PROBLEMS

HERE = {"device": "cpu", "dtype": "float32", "threads": 1}
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for message in messages %}"
    "{{ message.content }}{{ eos_token if message.role == 'assistant' else ' ' }}"
    "{% endfor %}"
)
FRUITS = ((0, "apples"), (5, "figs"))


def small_source(entry, folder, name, place, count):
    """Writes the source's file with a few rows: every `count`-th problem, or for a benchmark two of its own.

    tests/stages/test_collect.py and tests/engines/verifier/test_choices.py read the forms of the real files.
    """
    rows = PROBLEMS[place::count]
    if entry["role"] == "benchmark":
        rows = [
            (f"A basket holds {n + 3} {fruit} and a child takes {n + 1}. How many are left?", "2")
            for n, fruit in FRUITS
        ]
    lines = [json.dumps({"problem": one, "answer": answer, "solution": f"\\boxed{{{answer}}}"}) for one, answer in rows]
    file = folder / name
    file.write_text("\n".join(lines))
    fields = {"problem": "problem", "answer": "answer"}
    fields["solution"] = "solution" if entry["from"]["fields"]["solution"] else None
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    origin = {"kind": "local", "path": str(file), "sha256": sha256, "format": "jsonl", "fields": fields}
    return {**entry, "from": {**origin, "only": {}, "max_rows": None}}


def paper_miniature(name, taught, folder):
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
