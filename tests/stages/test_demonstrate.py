"""demonstrate: which texts become responses, where rows come from, why rows are dropped, and the split by problem."""

import json

import pytest
import torch

from stages.demonstrate.run import as_response
from stages.engines.policies.policy_folders import load_policy, save_policy
from stages.engines.policies.tokenizers import encode_prompt, encode_response
from stages.foundations.errors import UserError
from stages.foundations.params import PlainPrompt
from stages.foundations.tables import DEMONSTRATION, DROPPED, PROBLEM, read_table, write_table
from tests.fakes.one_stage import run_stage
from tests.fakes.tiny_policy import write_tiny_policy

PROMPT = {"kind": "plain", "template": "Q: {problem}\nA: "}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return write_tiny_policy(tmp_path_factory.mktemp("policy"))


def table(path, source, rows):
    columns = ("problem", "answer", "solution", "problem_id", "source", "licence")
    rows = [(*row, f"{source}/{number}", source, "MIT") for number, row in enumerate(rows)]
    write_table([dict(zip(columns, row, strict=True)) for row in rows], path, PROBLEM)


def demonstrate(
    tmp_path,
    policy,
    sources,
    problems=(),
    solutions=(),
    validation_rows=0,
    max_response_tokens=100,
    seed=0,
    prompt=PROMPT,
):
    table(tmp_path / "problems", "gsm", problems)
    table(tmp_path / "web/solutions.parquet", "site", solutions)
    table(tmp_path / "conversations", "none", [])
    own = {"sources": sources, "validation_rows": validation_rows, "max_response_tokens": max_response_tokens}
    sections = {
        "seed": seed,
        "prompt": prompt,
        "demonstrate": own,
        "sampler": {"kind": "torch", "device": "cpu", "dtype": "float32", "threads": 1, "max_sequences": 16},
        "verifier": {"timeout_seconds": 5, "memory_mib": 2048, "workers": 1, "abort_undecided_fraction": 0.5},
    }
    metrics = run_stage("demonstrate", tmp_path, sections, policy=policy)
    tables = {name: read_table(tmp_path / name, DEMONSTRATION) for name in ("train", "validation")}
    return tables, read_table(tmp_path / "dropped", DROPPED), metrics


@pytest.mark.parametrize(
    ("solution", "answer", "response"),
    [
        ("1+2=3\nThe answer is \\boxed{3}.", "3", "1+2=3\nThe answer is \\boxed{3}."),
        ("48/2 = <<48/2=24>>24\n#### 24", "24", "48/2 = 24\nThe answer is \\boxed{24}."),
        ("3", "3", "The answer is \\boxed{3}."),
        ("$x=5$.", "x=5", "The answer is \\boxed{x=5}."),
        ("The answer is 7.", "7", "The answer is \\boxed{7}."),
        ("So $x=5$.", "$5$", "So $x=5$.\nThe answer is \\boxed{5}."),
        ("Cut off \\boxed{3", "3", "Cut off \\boxed{3\nThe answer is \\boxed{3}."),
    ],
)
def test_solutions_become_responses(solution, answer, response):
    assert as_response(solution, answer) == response


def test_a_box_inside_a_thought_is_no_final_answer():
    thought = r"[THINK]so \boxed{3}[/THINK]It is three."
    closed = thought + "\nThe answer is \\boxed{3}."
    assert as_response(thought, "3") == thought
    assert as_response(thought, "3", ("[THINK]", "[/THINK]")) == closed
    assert as_response(closed, "3", ("[THINK]", "[/THINK]")) == closed


def test_sources_and_reasons(tmp_path, policy):
    tables, dropped, metrics = demonstrate(
        tmp_path,
        policy,
        [{"kind": "web", "max_rows": None}, {"kind": "given", "sources": ["gsm"], "max_rows": 2}],
        problems=[
            ("A?", "1", "one\n#### 1"),
            ("B?", "2", None),
            ("C?", "3", "x" * 200),
            ("D?", "4", "four"),
            ("E?", "5", "five"),
        ],
        solutions=[
            ("1+2?", "3", "1+2=3\nThe answer is \\boxed{3}."),
            ("1+2?", "3", "1+2=3\nThe answer is \\boxed{3}."),
            ("long?", "3", "y" * 300),
        ],
    )
    assert set(tables["train"]["kind"]) == {"web", "given"}
    assert metrics["rows/in"] == 7 == metrics["rows/kept"] + len(dropped)
    assert metrics["dropped/repeated"] == 1 and metrics["dropped/beyond_max_rows"] == 2
    assert metrics["dropped/response_too_long"] >= 1
    assert metrics["rows/train"] == len(tables["train"]) and metrics["rows/validation"] == 0


def test_validation_shares_no_problem_with_train_and_follows_the_seed(tmp_path, policy):
    solutions = [(f"Compute {i % 30}+1.", str(i % 30 + 1), f"way {i}\n") for i in range(60)]

    def run(seed):
        return demonstrate(tmp_path, policy, [{"kind": "web", "max_rows": 50}], (), solutions, 9, seed=seed)

    tables, _, metrics = run(1)
    assert 9 <= metrics["rows/validation"] <= 10
    assert not set(tables["train"]["problem"]) & set(tables["validation"]["problem"])
    assert not run(2)[0]["validation"].equals(tables["validation"])


def test_nothing_left_is_an_error_with_the_counts(tmp_path, policy):
    with pytest.raises(UserError, match="response_too_long"):
        demonstrate(tmp_path, policy, [{"kind": "web", "max_rows": None}], (), [("A?", "1", "x" * 300)])
    assert not (tmp_path / "train").exists()


def test_rejection_sampling_keeps_different_correct_responses(tmp_path, policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    model, tokenizer = load_policy(policy, torch.float32)
    texts = ["\\boxed{3}", "= \\boxed{3}", "no idea"]
    prompt = encode_prompt(tokenizer, PlainPrompt(**PROMPT), "Compute 1+2.")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(150):
        response = encode_response(tokenizer, texts[step % 3])
        ids = torch.tensor([prompt + response])
        labels = ids.clone()
        labels[:, : len(prompt)] = -100
        model.train()(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    save_policy(model.eval(), tokenizer, folder)
    source = {"kind": "rejection_sampled", "samples": 24, "kept_per_problem": 2, "temperature": 1.0}
    source |= {"max_response_tokens": 24, "max_problems": None}
    tables, dropped, metrics = demonstrate(tmp_path, folder, [source], [("Compute 1+2.", "3", None)])
    assert len(tables["train"]) == 2 == tables["train"]["response"].nunique()
    assert all("\\boxed{3}" in response for response in tables["train"]["response"])
    assert metrics["rows/in"] == 24 == len(dropped) + 2
    assert {"repeated", "beyond_kept_per_problem"} & set(dropped["reason"])
    assert "correct" not in set(dropped["reason"])
    # Every answer is a call of a tool that is not there; the second turn is the last.
    environment = {
        "kind": "tools",
        "tools": {},
        "calls": {"kind": "marked", "call": "\\", "answer": "!"},
        "frame": {"kind": "text", "before": ":", "after": ";\nQ: Compute 1+2.\nA: "},
        "max_turns": 2,
        "max_observation_tokens": 8,
        "workers": {"processes": 1, "memory_mib": 1024, "timeout_seconds": 5.0},
    }
    source["max_response_tokens"] = 100
    in_turns = PROMPT | {"environment": environment}
    tables, *_ = demonstrate(tmp_path, folder, [source], [("Compute 1+2.", "3", None)], prompt=in_turns)
    assert set(tables["train"]["response"]) <= {"\\boxed{3}", "= \\boxed{3}"}
    for text in tables["train"]["messages"]:
        said = [(one["role"], one["content"]) for one in json.loads(text)]
        assert [role for role, _ in said] == ["user", "assistant", "tool", "assistant"]
        assert said[0][1] == "Compute 1+2." and said[2][1] in ("x", "e") and said[3][1].endswith("\\boxed{3}")


def test_given_solutions_are_judged_where_the_recipe_asks(tmp_path, policy):
    problems = [
        ("A?", "4", "<think>2+2</think>so \\boxed{4}"),
        ("B?", "4", "so \\boxed{5}"),
        ("C?", "7", "cut off before the"),
        ("D?", "24", "48/2 = <<48/2=24>>24\n#### 24"),
    ]
    source = {"kind": "given", "sources": None, "max_rows": None}
    tables, dropped, _ = demonstrate(tmp_path, policy, [source | {"verified": True}], problems)
    assert list(tables["train"]["problem"]) == ["A?", "D?"]
    assert dict(zip(dropped["row_id"], dropped["reason"], strict=True)) == {
        "gsm/1": "solution_wrong",
        "gsm/2": "solution_unparsed",
    }
    assert "extracted 5, not 4" in dropped["detail"].iloc[0]
    trusted, _, _ = demonstrate(tmp_path, policy, [source], problems)
    assert len(trusted["train"]) == 4
