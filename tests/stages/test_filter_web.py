"""filter_web: every rule rejects its cases and nothing else; agreement with a real, tiny policy."""

import json

import pandas
import pytest
import torch

from stages.engines.policies.policy_folders import load_policy, save_policy
from stages.engines.policies.tokenizers import encode_prompt, encode_response
from stages.filter_web.run import RULES, Candidate, filter_candidates, first_objection, tidy_functions, too_long
from stages.filter_web.stage import FilterRules, LengthLimits
from stages.foundations.errors import UserError
from stages.foundations.params import PlainPrompt
from stages.foundations.tables import BENCHMARK, CANDIDATE, CONTAMINATION, DROPPED, PROBLEM, read_table, write_table
from tests.fakes.one_stage import run_stage
from tests.fakes.tiny_policy import write_tiny_policy

RULE_NAMES = [*RULES, "conflicting_answers", "exact_duplicate"]
ALL_RULES = dict.fromkeys(RULE_NAMES, True) | {
    "too_long": {"problem_characters": 300, "solution_characters": 300, "answer_characters": 30},
    "near_duplicate": {"shingle_words": 2, "similarity": 0.7, "permutations": 64, "same_numbers": True},
    "contaminated": {"exact": True, "ngrams": None, "near_duplicates": None, "templates": None},
}
PROMPT = {"kind": "plain", "template": "Q: {problem}\nA: "}
SUM = ("Compute 1+2 for me please.", "1+2=3\nThe answer is \\boxed{3}.", "3")


def candidate(number, problem, solution, answer):
    texts = {"problem": problem, "solution": solution, "answer": answer}
    return {"candidate_id": f"web/1#{number}", "page_id": "web/1", "url": "u", "licence": "MIT", **texts}


def filter_web(tmp_path, rows, policy=None, benchmark=("Compute 5+5.",), rules=ALL_RULES, agreement=None):
    """Returns the solutions, the reason of each dropped row by its number, and the metrics."""
    write_table([candidate(i, *row) for i, row in enumerate(rows)], tmp_path / "candidates", CANDIDATE)
    own = {"source": "b", "answer": "1", "solution": None, "licence": "MIT", "benchmark": "held_out"}
    held_out = [{"problem_id": str(i), "problem": text, **own} for i, text in enumerate(benchmark)]
    write_table(held_out, tmp_path / "benchmarks", BENCHMARK)
    (tmp_path / "policy").mkdir(exist_ok=True)
    sections = {
        "seed": 0,
        "prompt": PROMPT,
        "filter_web": {"rules": rules, "agreement": agreement or {"kind": "none"}},
        "sampler": {"kind": "torch", "device": "cpu", "dtype": "float32", "threads": 1, "max_sequences": 16},
        "verifier": {"timeout_seconds": 5, "memory_mib": 2048, "workers": 1, "abort_undecided_fraction": 0.5},
    }
    metrics = run_stage("filter_web", tmp_path, sections, policy=policy or tmp_path / "policy")
    dropped = read_table(tmp_path / "dropped", DROPPED)
    numbers = [int(row_id.rpartition("#")[2]) for row_id in dropped["row_id"]]
    reasons = dict(zip(numbers, dropped["reason"], strict=True))
    return read_table(tmp_path / "solutions", PROBLEM), reasons, metrics


CASES = {
    "no_solution": ("What is 1+2 then?", "", "3"),
    "no_short_answer": ("What is 1+2 then?", "It is what it is.", ""),
    "unfinished": ("What is 1+2+4 then?", "1+2=3\n3+4=8", "7"),
    "solution_disagrees_with_answer": ("What is 1+2 then?", "The answer is \\boxed{4}.", "3"),
    "no_question": ("$x^2+1$", "$2$", "2"),
    "multi_part": ("Compute:\n- the mean\n- the mode", "3", "3"),
    "refers_to_figure_or_other": ("Using the graph shown, find its slope.", "3", "3"),
    "proof_or_opinion": ("Prove that the answer is 3.", "3", "3"),
    "copy_is_correct": ("Factor $x^2-9$ for me please.", "$(x-3)(x+3)$", "(x+3)(x-3)"),
    "wrong_language": ("Wie viele Äpfel hat Jörg, wenn er früher fünf Äpfel und später zwölf Äpfel kauft?", "17", "17"),
}


def test_every_rule_has_a_case():
    assert CASES.keys() == RULES.keys()


@pytest.mark.parametrize("name", CASES)
def test_rule_objects_to_its_case_and_can_be_switched_off(tmp_path, name):
    rows = [SUM, CASES[name]]
    _, reasons, metrics = filter_web(tmp_path, rows)
    assert reasons == {1: name} and metrics[f"dropped/{name}"] == 1
    _, reasons, _ = filter_web(tmp_path, rows, rules=ALL_RULES | {name: False})
    assert name not in reasons.values()


@pytest.mark.parametrize(
    ("problem", "solution", "answer"),
    [
        SUM,
        ("Tom has 3 apples. Tom buys 4 more. How many apples does Tom have?", "3+4=7\nThe answer is \\boxed{7}.", "7"),
        ("Solve $2x=10$ for $x$.", "Divide by 2.\nSo $x=5$.", "x=5"),
        ("Which is larger, 3+4 or 9-1?", "3+4=7\n9-1=8\nThe answer is \\boxed{8}.", "8"),
        ("Is $6$ or $8$ a factor of $24$ and of $30$?", "$6$", "6"),
        ("Simplify $3 \\cdot 4$.", "$12$", "12"),  # the verifier rejects unfinished work
        ("For the following exercises, simplify the expression.\n$3-12 \\times 2+19$", "-2", "-2"),
        (
            "Use the following information to answer the next six exercises: a store gets 120 customers a day.\n"
            "How many come in a week of six days?",
            "720",
            "720",
        ),
        ("In Exercises 5-9, solve for x.\n$2x=10$", "$5$", "5"),
        ("A table costs 40 dollars and a chair 10. What do both cost?", "40+10=50\nThe answer is \\boxed{50}.", "50"),
    ],
)
def test_good_exercises_pass_every_rule(problem, solution, answer):
    row = Candidate(problem, solution, answer)
    assert {name: rule(row) for name, rule in RULES.items() if rule(row)} == {}


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("Use the slope that you found in the previous exercise.", "refers_to_figure_or_other"),
        ("Take the logarithm of both sides of your equation.", "refers_to_figure_or_other"),
        ("Add the number of part $a$ to both sides.", "refers_to_figure_or_other"),
        ("Solve for x. Then use it for the following exercises.\n$2x=10$", "refers_to_figure_or_other"),
        ("For the following exercises, use the graph shown.\nFind the slope.", "refers_to_figure_or_other"),
        ("For the following exercises, simplify.", "refers_to_figure_or_other"),
        ("b. What is the average of these?", "multi_part"),
    ],
)
def test_what_leans_on_another_text_is_refused(problem, reason):
    assert RULES[reason](Candidate(problem, "3", "3"))


@pytest.mark.parametrize(
    ("problem", "answer"),
    [
        ("Simplify $\\frac{2}{4}$.", "$\\frac{1}{2}$"),
        ("Evaluate $\\log_2(\\frac{1}{32})$.", "-5"),
        ("Let $a>0$.\nExpand $x(x+a)$.", "x^2+ax"),
        ("Rewrite $y=3 \\cdot 2^{x+1}$.", "y=6 \\cdot 2^x"),
    ],
)
def test_what_a_copy_of_the_problem_answers_is_refused_where_that_is_asked(problem, answer):
    assert RULES["copy_is_correct"](Candidate(problem, answer, answer))


def test_too_long_names_the_text():
    limits = LengthLimits(problem_characters=10, solution_characters=10, answer_characters=2)
    assert too_long(Candidate("short", "short", "long"), limits) == "answer of 4 characters, at most 2"
    assert too_long(Candidate("short", "short", "42"), limits) is None


@pytest.mark.timeout(240)
def test_hostile_texts_are_judged_at_once(tmp_path):
    """Takes a second or two; a rule with quadratic cost would take hours and is stopped."""
    texts = ["(a) " * 4_900, "\n" * 19_000, "the graph of " * 1_500, "a. " * 6_000, "x" * 10**6, "why ? " * 3_000]
    for text in texts:
        first_objection(
            {"candidate_id": "1", "problem": text, "solution": text, "answer": "3"},
            FilterRules.model_validate(ALL_RULES | {"too_long": None}),
        )
    row = {"candidate_id": "1", "problem": "x" * 10**6, "solution": "3", "answer": "3"}
    assert first_objection(row, FilterRules.model_validate(ALL_RULES | {"too_long": None}))[0] == "too_long"


def test_duplicates_conflicts_and_benchmarks(tmp_path):
    story = "Tom has 3 red apples and buys 4 more apples. How many apples?"
    cases = [
        ("Compute 1+2+3 now.", "6", None),
        ("compute 1 + 2 + 3 now", "6", "exact_duplicate"),
        ("What is the p-value?", "0.5", "conflicting_answers"),
        ("What is the p-value?", "0.7", "conflicting_answers"),
        ("compute 5+5.", "10", "contaminated"),
        (story, "7", None),
        (story.replace("?", " now?"), "7", "near_duplicate"),
        (story.replace("4", "5"), "8", None),
    ]
    kept, reasons, metrics = filter_web(tmp_path, [(problem, answer, answer) for problem, answer, _ in cases])
    assert reasons == {number: reason for number, (*_, reason) in enumerate(cases) if reason}
    assert kept["problem_id"].tolist() == ["web/1#0", "web/1#5", "web/1#7"]
    assert kept["source"].unique().tolist() == ["web"]
    assert metrics["rows/in"] == 8 and metrics["rows/kept"] == 3
    dropped = read_table(tmp_path / "dropped", DROPPED).set_index("row_id")
    assert "held_out 0" in dropped.loc["web/1#4", "detail"]
    assert json.loads(dropped.loc["web/1#4", "row"])["problem"] == "compute 5+5."


def test_hits_are_kept_with_both_texts(tmp_path):
    templates = {"templates": {"similarity": 0.6, "reworded_similarity": 0.1}}
    rules = ALL_RULES | {"contaminated": ALL_RULES["contaminated"] | templates}
    story = "Tom has 3 red apples and buys 4 more apples on the market. How many apples does Tom have?"
    other = story.replace("3", "8").replace("4", "9").replace("Tom", "Ann")
    filter_web(tmp_path, [SUM, (other, "17", "17")], rules=rules, benchmark=(story, "Compute 5+5."))
    hit = read_table(tmp_path / "contamination", CONTAMINATION).iloc[0]
    assert (hit["problem_id"], hit["source"], hit["problem"]) == ("web/1#1", "web", other)
    assert (hit["benchmark"], hit["benchmark_problem_id"], hit["benchmark_problem"]) == ("held_out", "0", story)
    assert (hit["rule"], hit["overlap"]) == ("template", 1.0)


def test_broken_candidates_are_dropped_with_a_reason(tmp_path):
    cases = [
        (SUM, None),
        (("Compute 1+5 please.", "6", "6"), "duplicate_id"),
        ((None, "6", "6"), "missing_field"),
        (("What is 2+2 then?", None, "4"), "no_solution"),
        (("What is 2+3 then?", "5", None), "no_short_answer"),
    ]
    table = pandas.DataFrame([candidate(i if i != 1 else 0, *row) for i, (row, _) in enumerate(cases)])
    benchmarks = pandas.DataFrame({"benchmark": "b", "problem_id": ["0", "1"], "problem": ["Compute 5+5.", None]})
    params = FilterRules.model_validate(ALL_RULES)
    kept, _, funnel = filter_candidates(table, benchmarks, params)
    assert [row["candidate_id"] for row in kept] == ["web/1#0"]
    assert funnel.dropped_frame()["reason"].tolist() == [reason for _, reason in cases if reason]
    assert funnel.metrics(1)["rows/in"] == 5


def test_a_benchmark_that_overlaps_itself_drops_a_candidate_once_and_names_every_problem(tmp_path):
    leak = ("Compute  5 + 5.", "5+5=10", "10")
    filter_web(tmp_path, [SUM, leak], benchmark=("Compute 5+5.", "Compute 5+5.", "compute $5+5$"))
    dropped = read_table(tmp_path / "dropped", DROPPED)
    hits = read_table(tmp_path / "contamination", CONTAMINATION)
    assert dropped["row_id"].tolist() == ["web/1#1"]
    assert hits["benchmark_problem_id"].tolist() == ["0", "1", "2"] and set(hits["problem_id"]) == {"web/1#1"}


def test_an_empty_table_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no rows"):
        filter_web(tmp_path, [])


def test_function_names_as_policies_know_them():
    assert (
        tidy_functions(r"\operatorname{sin}x+\operatorname{log}_2(\operatorname{foo})")
        == r"\sin x+\log_2(\operatorname{foo})"
    )


@pytest.fixture(scope="module")
def stubborn_policy(tmp_path_factory):
    """Returns a tiny policy that is trained to answer every prompt with a boxed 3."""
    folder = write_tiny_policy(tmp_path_factory.mktemp("policy"))
    model, tokenizer = load_policy(folder, torch.float32)
    response = encode_response(tokenizer, "\\boxed{3}")
    prompts = [
        encode_prompt(tokenizer, PlainPrompt(**PROMPT), text) for text in ("Compute 1+2.", "Compute 9-2 for me please.")
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(80):
        ids = torch.tensor([prompts[step % 2] + response])
        labels = ids.clone()
        labels[:, : -len(response)] = -100
        model.train()(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    save_policy(model.eval(), tokenizer, folder)
    return folder


def test_agreement_keeps_what_the_policy_reaches(tmp_path, stubborn_policy):
    rows = [
        SUM,
        ("Compute 9-2 for me please.", "9-2=7\nThe answer is \\boxed{7}.", "7"),
        ("Compute 2+1 please.", "3", "3"),
    ]
    agreement = {"kind": "policy", "samples": 2, "temperature": 0.2, "max_response_tokens": 16, "max_candidates": None}
    kept, reasons, metrics = filter_web(tmp_path, rows, stubborn_policy, agreement=agreement)
    assert reasons == {1: "no_agreement"} and kept["answer"].tolist() == ["3", "3"]
    assert metrics["dropped/no_agreement"] == 1
    asked, kept_rows = metrics["agreement/asked"], metrics["agreement/kept"]
    assert (asked, kept_rows) == (3, 2) and metrics["agreement/sampled_tokens"] >= 3
    first = (tmp_path / "solutions").read_bytes()
    filter_web(tmp_path, rows, stubborn_policy, agreement=agreement)
    assert (tmp_path / "solutions").read_bytes() == first
    _, reasons, _ = filter_web(tmp_path, rows, stubborn_policy, agreement=agreement | {"max_candidates": 1})
    assert list(reasons.values()).count("not_sampled") == 2
