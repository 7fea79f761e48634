"""The recipe `calculator` in miniature: conversations, fine-tuning, a round over several turns, scores, the page."""

import copy
import json

import pandas
import pytest

from pipelines.graph.recipes import read_recipe, with_changes
from stages.engines.environments.conversations import turn_encoder
from stages.engines.environments.kinds import make_environment
from stages.engines.environments.protocol import Done
from stages.engines.policies.tokenizers import load_tokenizer
from stages.foundations.machine import PROJECT
from stages.foundations.params import PromptParams, validate_section
from tests.fakes.graph_in_process import run_graph

CHANGES = {
    "policies": ["sft", "rl_1"],
    "base.hidden_size": 64,
    "base.layers": 2,
    "base.heads": 2,
    "base.feed_forward_size": 128,
    "sources.calculator_conversations.from.rows": 400,
    "sources.calculator_conversations.from.called": 0.5,
    "sources.calculator_train.from.rows": 60,
    "sources.calculator_held_out.from.rows": 8,
    "curate.validation_rows": 4,
    "demonstrate.validation_rows": 8,
    "sft.steps": 60,
    "sft.batch_demonstrations": 16,
    "sft.warmup_steps": 4,
    "sft.validate_every_steps": 60,
    "sft.checkpoint_every_steps": 60,
    "rl.problems_per_step": 4,
    "rl.group_size": 4,
    "rl_rounds.rl_1.steps": 2,
    "rl_rounds.rl_1.warmup_steps": 1,
    "respond.samples": 2,
    "grade.pass_at_k": [2],
    "grade.bootstrap_draws": 100,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns the folder of a whole run and its parameters."""
    folder, params = tmp_path_factory.mktemp("calculator"), with_changes(read_recipe(PROJECT, "calculator"), CHANGES)
    run_graph(folder, params)
    return folder, params


def metrics(folder, name):
    return json.loads((folder / f"data/metrics/{name}.json").read_text())


def test_the_graph_runs_to_its_page_and_the_policy_calls(run):
    folder, _ = run
    counted = metrics(folder, "rl_round/rl_1")
    assert counted["rollouts/drawn"] == 32 and counted.get("rollouts/undecided", 0) == 0
    rollouts = pandas.read_parquet(folder / "data/rollouts/rl_1.parquet")
    assert rollouts["turns"].max() > 1 and rollouts["calls"].sum() > 0
    assert (rollouts["turns"] <= 6).all() and (rollouts["environment_fault"].fillna("") == "").all()
    assert 0 <= metrics(folder, "grade/rl_1")["calculator_held_out/avg_at_2"] <= 1
    assert (folder / "reports/index.html").is_file()


def test_fine_tuning_learns_the_very_tokens_that_sampling_produces(run):
    """Reads rollouts back as conversations: their ids must be those that were sampled."""
    folder, params = run
    tokenizer = load_tokenizer(folder / "data/policies/sft")
    prompt = validate_section(params["prompt"], "prompt", PromptParams, folder)
    encode = turn_encoder(tokenizer, prompt, folder / "data/policies/sft")
    problems = pandas.read_parquet(folder / "data/problems/train.parquet").set_index("problem_id")["problem"]
    compared = 0
    for row in pandas.read_parquet(folder / "data/rollouts/rl_1.parquet").to_dict("records"):
        ids, borders = list(row["token_ids"]), [int(place) for place in row["observed"]]
        if row["is_truncated"] or not borders:
            continue
        messages = [{"role": "user", "content": problems[row["problem_id"]]}]
        ends = [*borders, len(ids)]
        for number, (start, end) in enumerate(zip([0, *borders], ends, strict=True)):
            text = tokenizer.decode(ids[start:end], skip_special_tokens=True)
            # The frame `:...;` is the recipe's, and not part of what was observed.
            messages.append({"role": ("assistant", "tool")[number % 2], "content": text[1:-1] if number % 2 else text})
        if any("\ufffd" in message["content"] for message in messages):
            continue  # bytes that are no text, from a policy that has hardly learnt anything
        encoded, is_written, _ = encode(messages)
        start = is_written.index(True)
        observed = {place for a, b in zip(borders[::2], borders[1::2], strict=True) for place in range(a, b)}
        assert encoded[start:] == ids
        assert [not mine for mine in is_written[start:]] == [place in observed for place in range(len(ids))]
        compared += 1
    assert compared > 3


def test_the_calculator_answers_as_the_conversations_say(run):
    """Plays the authors' turns to the recipe's own environment."""
    folder, params = run
    calculator = params["prompt"]["environment"]["tools"]["calculator"]
    assert calculator["busy_fraction"] == 0.1
    idle = copy.deepcopy(params["prompt"])
    idle["environment"]["tools"]["calculator"]["busy_fraction"] = 0.0
    environment = validate_section(idle, "prompt", PromptParams, folder).environment
    conversations = pandas.read_parquet(folder / "data/problems/conversations.parquet")["messages"][:100]
    seen = set()
    for user, *turns in map(json.loads, conversations):
        problem = {"problem_id": "p", "problem": user["content"], "answer": turns[-1]["content"].removeprefix("!")}
        made = make_environment(environment, problem, 1)
        made.reset()
        said = [turn["content"] for turn in turns]
        for turn, observation in zip(said[:-1:2], said[1::2], strict=True):
            answered = made.step(turn)
            seen.add(observation if not observation.isdigit() else "number")
            if observation != "b":
                assert (answered if isinstance(answered, str) else answered.text) == observation, turn
        done = made.step(said[-1])
        assert isinstance(done, Done) and done.response == f"\\boxed{{{problem['answer']}}}"
    assert len(seen) == 3  # numbers, the busy calculator, and a rejected call
