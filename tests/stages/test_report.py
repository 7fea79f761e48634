"""The report: numbers equal their files, bytes are stable, hostile text stays text, parts may be missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from html.parser import HTMLParser
from pathlib import Path

import numpy
import pandas
import pytest
import yaml

from stages.__main__ import main
from stages.algorithms.estimators import clustered_bootstrap, compare_paired
from stages.foundations.errors import UserError
from stages.foundations.files import write_curves, write_metrics
from stages.foundations.tables import RESPONSE, ROLLOUT, VERDICT, read_table, write_table
from stages.observe.tracking import write_timings
from stages.pages.page import visible_text
from stages.pages.reading import graph_lanes
from stages.report.inputs import Comparison, ReportRun
from stages.report.learning import join_rounds
from stages.report.sections import verdict_sentence
from stages.report.stage import ReportParams

PROJECT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "</pre><script>alert('owned')</script><img src=x onerror=\"alert(2)\"> & \u202egnp.exe \x07" + "A" * 900
OWN_SECTIONS = ("base", "collect_web", "curate", "extract_web", "filter_web", "demonstrate", "sft", "report")
PARAMS = {
    "seed": 3,
    **{name: {} for name in OWN_SECTIONS},
    "policies": ["base", "sft", "rl_1"],
    "sources": {"sums": {"role": "train"}, "sums_heldout": {"role": "benchmark", "from": {"sha256": "ab12"}}},
    "rl_rounds": {"rl_1": {"start_from": "sft", "steps": 4}},
    "report": {
        "title": "Sums <on a laptop>",
        "notes": "All splits share templates & number facts.\n\nSecond paragraph.",
        "baseline_policy": "sft",
        "example_problems": 4,
        "contamination_pairs": 4,
        "example_characters": 400,
        "published": {"sums_heldout": [{"name": "Model <X>", "metric": "greedy", "value": 12.5, "source": "table 3"}]},
    },
}
SAMPLES = 4
LOOPS = ("${sources}", "${rl_rounds}", "${policies}")
"""Lists over which stages of language recipes run."""
FOLDERS = ("metrics", "curves", "verdicts", "responses", "problems", "web", "demonstrations", "schedules", "rollouts")
CORRECT_OF_FOUR = {"base": lambda number: 0, "sft": lambda number: number % 3, "rl_1": lambda number: 3 + number % 2}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return finished_run(tmp_path)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory) -> tuple[Path, str]:
    """A finished run that no test changes, and its page, which takes a second of CPU time."""
    folder = finished_run(tmp_path_factory.mktemp("unchanged"))
    return folder, make_page(folder)


def finished_run(folder: Path) -> Path:
    """Makes a finished run: 12 problems, three policies, one round, one funnel with drops and one without."""
    write_params(folder, PARAMS)
    for policy in PARAMS["policies"]:
        write_policy(folder, policy, CORRECT_OF_FOUR[policy])
    data = folder / "data"
    write_metrics(data / "metrics/collect/sums.json", {"rows/in": 50, "rows/kept": 50})
    curated = {"rows/in": 1050, "rows/kept": 1000, "dropped/duplicate": 47, "dropped/contaminated": 3}
    curated |= {"contamination/pairs": 5, "sums_heldout/rows": 12, "sums_heldout/rows_hit": 2}
    write_metrics(data / "metrics/curate.json", curated)
    write_metrics(data / "metrics/rl_round/rl_1.json", {"progress/steps": 4, "tokens/sampled": 8191})
    write_curves(data / "curves/sft.csv", [{"step": n, "loss/train": 3 / n} for n in range(1, 9)])
    steps = range(1, 5)
    rows = [{"step": n, "accuracy/mean": n / 10, "sync/logprob_gap_max": 0.0, "entropy/mean": 1 / n} for n in steps]
    write_curves(data / "curves/rl_round/rl_1.csv", rows)
    return folder


def write_params(folder: Path, params: dict) -> None:
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    for name in FOLDERS:
        (folder / "data" / name).mkdir(parents=True, exist_ok=True)


def write_policy(folder: Path, policy: str, correct_of_four) -> None:
    responses, verdicts, shares = [], [], []
    for number in range(12):
        key = {"problem_id": f"sums/{number}", "benchmark": "sums_heldout"}
        correct = correct_of_four(number)
        shares.append(correct / SAMPLES)
        for mode, index in [("greedy", 0), *(("sampled", index) for index in range(SAMPLES))]:
            key |= {"mode": mode, "sample_index": index}
            is_hostile = policy == "rl_1" and mode == "greedy"
            response = HOSTILE if is_hostile else f"So \\boxed{{{number}}}"
            row = {**key, "problem": f"Is {number} < {number + 1}?", "answer": str(number), "response": response}
            responses.append(row | {"response_tokens": 9, "is_truncated": False})
            verdict = "correct" if index < correct else "wrong"
            verdicts.append({**key, "verdict": verdict, "extracted": None, "path": "exact", "reason": ""})
    write_table(responses, folder / f"data/responses/{policy}.parquet", RESPONSE)
    write_table(verdicts, folder / f"data/verdicts/{policy}.parquet", VERDICT)
    own = clustered_bootstrap(shares, draws=200)
    greedy = clustered_bootstrap([float(share > 0) for share in shares], draws=200)
    grades = {
        f"sums_heldout/{name}{end}": value
        for name, interval in (("greedy", greedy), ("avg_at_4", own))
        for end, value in zip(("", "_low", "_high"), interval, strict=True)
    }
    described = {"problems": 12, "response_tokens_mean": 9.25, "truncated_fraction": 0.0625, "undecided_fraction": 0.0}
    grades |= {"rows/in": 60, "rows/kept": 60, **{f"sums_heldout/{name}": one for name, one in described.items()}}
    write_metrics(folder / f"data/metrics/grade/{policy}.json", grades)


def flags(folder: Path) -> Namespace:
    folders = {name: folder / "data" / name for name in FOLDERS}
    return Namespace(params=folder / "params.yaml", graph=PROJECT / "dvc.yaml", **folders)


def read(folder: Path) -> ReportRun:
    return ReportRun(flags(folder), ReportParams.model_validate(PARAMS["report"]))


def labels_of(page: str) -> list[str]:
    """What a screen reader says of the charts."""
    return [attributes["aria-label"] for tag, attributes in Reader(page).tags if tag == "svg"]


def make_page(folder: Path, name: str = "index.html") -> str:
    out = folder / "reports" / name
    named = [text for flag, path in vars(flags(folder)).items() for text in (f"--{flag}", str(path))]
    main(["report", *named, "--out", str(out), "--result", str(out.with_name("result.json"))])
    return out.read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Reads what a browser would show: tags with attributes, and the text outside of styles and scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._raw = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._raw = tag if tag in ("style", "script") else ""

    def handle_endtag(self, tag):
        self._raw = ""

    def handle_data(self, data):
        if not self._raw:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_numbers_on_the_page_are_those_of_the_metric_files(unchanged):
    run, page = unchanged
    text = Reader(page).text
    for policy in PARAMS["policies"]:
        grades = json.loads((run / f"data/metrics/grade/{policy}.json").read_text())
        for metric in ("greedy", "avg_at_4"):
            value, low, high = (100 * grades[f"sums_heldout/{metric}{end}"] for end in ("", "_low", "_high"))
            assert f"{value:.1f}% {low:.1f} to {high:.1f}%" in text
    assert "9.2" in text and "6.2%" in text
    assert "1,050 in, 1,000 kept (95.2%)" in text
    assert "duplicate 47 4.5%" in text
    assert "5 pairs of a training problem and a benchmark problem were found alike; curate dropped 3 rows" in text
    assert "sums_heldout 12 2" in text
    assert "8,191" in text
    assert "Model <X> greedy 12.5% table 3" in text


def test_headline_is_the_paired_difference_of_the_last_round_to_the_baseline(unchanged):
    run, page = unchanged
    first = numpy.array([number % 3 / SAMPLES for number in range(12)])
    second = numpy.array([(3 + number % 2) / SAMPLES for number in range(12)])
    wanted = compare_paired(first, second).interval
    (benchmark,) = read(run).benchmarks
    found = benchmark.compare("avg_at_4", "sft", "rl_1").difference
    assert found.interval == pytest.approx(wanted) and found.problems == 12
    text = Reader(page).text
    assert f"{100 * wanted.estimate:+.1f} points from sft to rl_1" in text
    assert f"95% interval {100 * wanted.low:+.1f} to {100 * wanted.high:+.1f} points" in text
    assert "rl_1 scores higher than sft" in text


def test_the_result_has_the_scores_and_gains_of_the_page(unchanged):
    run, _ = unchanged
    result, read_again = json.loads((run / "reports" / "result.json").read_text()), read(run)
    difference = read_again.benchmarks[0].compare("avg_at_4", "sft", "rl_1").difference
    gain = next(one for one in result["gains"] if one["metric"] == "avg@4")
    assert (gain["policy"], gain["baseline"], gain["verdict"]) == ("rl_1", "sft", difference.verdict)
    assert (gain["value"], gain["low"], gain["high"]) == difference.interval
    scores = {one["policy"]: one["value"] for one in result["scores"] if one["benchmark"] == "sums_heldout"}
    assert scores == {name: read_again.grades(name)["sums_heldout/avg_at_4"] for name in PARAMS["policies"]}


def test_a_round_in_which_no_step_trained_is_told_first(run):
    metrics = {"progress/steps": 4, "progress/steps_without_update": 3, "groups/drawn": 40, "groups/trained": 1}
    path = run / "data/metrics/rl_round/rl_1.json"
    write_metrics(path, metrics)
    assert "no step of rl_1 trained" not in Reader(make_page(run)).text.lower()
    assert json.loads((run / "reports" / "result.json").read_text())["warnings"] == []
    write_metrics(path, metrics | {"progress/steps_without_update": 4, "groups/trained": 0})
    told = "no step of rl_1 trained: none of the 40 groups had both correct and wrong responses"
    text = Reader(make_page(run)).text.lower()
    assert told in text and text.index(told) < text.index("points from sft to rl_1")
    (warning,) = json.loads((run / "reports" / "result.json").read_text())["warnings"]
    assert warning.startswith(told)


@pytest.mark.parametrize(
    ("wins", "losses", "ties", "start"),
    [
        (60, 0, 240, "rl_1 scores higher than sft"),
        (0, 60, 240, "rl_1 scores lower than sft"),
        (30, 20, 250, "No difference between rl_1 and sft is shown"),
        (0, 0, 300, "No difference between rl_1 and sft is shown"),
        (9, 0, 0, "Too few problems to compare rl_1 and sft"),
    ],
)
def test_better_is_said_only_where_the_interval_leaves_out_zero(wins, losses, ties, start):
    difference = compare_paired([0] * wins + [1] * (losses + ties), [1] * wins + [0] * losses + [1] * ties)
    sentence = verdict_sentence(Comparison("b", "avg_at_8", "sft", "rl_1", difference))
    assert sentence.startswith(start)


def test_equal_inputs_give_equal_bytes_in_another_process_place_and_matplotlib_setting(run, tmp_path):
    first = make_page(run)
    assert str(run) not in first
    copy = tmp_path / "elsewhere"
    shutil.copytree(run / "data", copy / "data")
    shutil.copy(run / "params.yaml", copy)
    shutil.copy(PROJECT / "dvc.yaml", copy)
    (copy / "matplotlibrc").write_text("lines.linewidth: 9\nsvg.fonttype: path\n")
    named = [f"--{flag}={os.path.relpath(path, copy)}" for flag, path in vars(flags(copy)).items() if flag != "graph"]
    named.append("--graph=dvc.yaml")
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    named += ["--out=reports/index.html", "--result=reports/result.json"]
    command = [sys.executable, "-m", "stages", "report", *named]
    subprocess.run(command, cwd=copy, env=environment, check=True)
    assert (copy / "reports/index.html").read_text(encoding="utf-8") == first


def test_hostile_responses_stay_text_and_are_cut(run):
    page = make_page(run)
    reader = Reader(page)
    scripts = [attributes for tag, attributes in reader.tags if tag == "script"]
    assert scripts == [{"src": "timings.js"}, {}]
    assert not [tag for tag, _ in reader.tags if tag in ("img", "iframe", "object")]
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on")]
    shown = HOSTILE.rstrip("A").replace("\u202e", "⟨U+202E⟩").replace("\x07", "⟨U+0007⟩")
    assert shown in reader.text
    assert f"[cut: {len(HOSTILE):,} characters in all]" in reader.text
    assert "A" * 400 not in page and "\u202e" not in page and "\x07" not in page
    assert "Sums <on a laptop>" in reader.text


def test_an_examples_observations_are_set_off_and_curves_of_turns_are_drawn(run):
    path = run / "data/responses/rl_1.parquet"
    rows = read_table(path, RESPONSE).to_dict("records")
    turns = ["!1+1;", "<b>2</b>", "!3;", "error: <i>", "=2"]
    ends = numpy.cumsum([len(turn) for turn in turns]).tolist()
    course = {"turns": 3, "calls": 2, "failed_calls": 1, "final_response": "\\boxed{2}", "ending": "max_turns"}
    course |= {
        "observed": [1, 2],
        "observed_characters": ends[:4],
        "environment_reward": None,
        "environment_fault": None,
    }
    fault = {"observed": [], "observed_characters": [], "turns": 1, "calls": 0, "failed_calls": 0}
    fault |= {"environment_fault": "a worker <died>"}
    for row in rows:
        row |= {"response": "".join(turns), **course} if row["problem_id"] != "sums/0" else course | fault
    write_table(rows, path, RESPONSE)
    curve = pandas.read_csv(run / "data/curves/rl_round/rl_1.csv")
    columns = {"turns/mean": 2.5, "calls/mean": 1.5, "calls/failed_fraction": 0.5, "tokens/observed": 40.0}
    write_curves(run / "data/curves/rl_round/rl_1.csv", curve.assign(**columns).to_dict("records"))
    page = make_page(run)
    assert (
        '<pre dir="auto">!1+1;<span class="observed">&lt;b&gt;2&lt;/b&gt;</span>!3;'
        '<span class="observed">error: &lt;i&gt;</span>=2</pre>' in page
    )
    assert "turns 3, calls 2, failed calls 1, ending max turns" in page
    assert "the environment failed: a worker &lt;died&gt;" in page and page.count("the environment failed:") == 1
    for title in ("Turns and calls of a response", "Failures between the turns", "Text of the environment"):
        assert f"<b>{title}</b>" in page


@pytest.mark.parametrize(
    ("text", "characters", "shown"),
    [
        ("a\r\nb\tc\n", 100, "a\nb\tc\n"),
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcdef … [cut: 7 characters in all]"),
        ("a\u200bb", 10, "a⟨U+200B⟩b"),
        (float("nan"), 10, ""),
    ],
)
def test_visible_text_keeps_lines_and_short_texts(text, characters, shown):
    assert visible_text(text, characters) == shown


def test_page_asks_nobody_for_anything_but_its_times(unchanged):
    _, page = unchanged
    loaded = [
        value
        for tag, attributes in Reader(page).tags
        for name, value in attributes.items()
        if name in ("src", "srcset", "data", "poster") or (name == "href" and tag == "link")
    ]
    assert loaded == ["data:,", "timings.js"]
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    ids = [attributes["id"] for _, attributes in Reader(page).tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r"(?:xlink:href=\"#|url\(#|href=\"#)([^\")]+)", page))
    assert targets <= set(ids)


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: apt-get install chromium")
def test_the_times_are_those_of_the_stages_on_the_page(run):
    """The file also has the stages of earlier recipes."""
    from playwright.sync_api import sync_playwright

    make_page(run)
    names = ("sft", "rl_round@rl_1", "rl_round@of_another_recipe", "t2i_prompts")
    write_timings(run / "reports/timings.js", [{"name": name, "seconds": 2.0, "phases": {}} for name in names])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(f"file://{run}/reports/index.html")
        assert page.locator("#timings th").all_inner_texts() == ["sft", "rl_round@rl_1"]
        assert "4.0 s together" in page.inner_text("#timings")
        browser.close()


def test_plots_speak_and_follow_the_theme(unchanged):
    _, page = unchanged
    labels = labels_of(page)
    assert len(labels) == 8 and all(labels)
    assert "Accuracy on training problems. sampled responses 10% → 40%." in labels
    colors = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))))
    assert {color for color in colors if color.startswith("#")} == set()


def test_held_out_accuracy_has_a_figure_that_begins_with_the_start(run):
    """The round must have evaluated it; the other figures begin with the first step."""
    ends = {"": 0.0, "_low": -0.1, "_high": 0.1}
    evaluated = {n: {f"evaluation/accuracy{end}": 0.2 + n / 10 + add for end, add in ends.items()} for n in (0, 2, 4)}
    rows = [{"step": n, **({"accuracy/mean": n / 10} if n else {}), **evaluated.get(n, {})} for n in range(5)]
    write_curves(run / "data/curves/rl_round/rl_1.csv", rows)
    labels = labels_of(make_page(run))
    assert "Accuracy on training problems. sampled responses 10% → 40%." in labels
    (label,) = [one for one in labels if one.startswith("Accuracy on held-out problems.")]
    assert "20% → 60%" in label


def test_a_search_by_trial_has_its_section_and_rounds_from_one_policy_stand_side_by_side(run):
    data = run / "data"
    for place, policy in enumerate(PARAMS["policies"]):
        path = data / f"metrics/grade/{policy}.json"
        grades = json.loads(path.read_text())
        searched = {"trials_mean": 2.0 + place, "false_claim_fraction": 0.3 - place / 10}
        searched |= {"without_trials_fraction": 0.5, "keyword_rate_start_over": 0.01}
        passes = {
            f"pass_at_{k}{end}": 0.1 * k + place / 10 + width
            for k in (1, 2, 4)
            for end, width in (("", 0.0), ("_low", -0.05), ("_high", 0.05))
        }
        grades |= {f"sums_heldout/{name}": value for name, value in (searched | passes).items()}
        write_metrics(path, grades)
    rounds = {"rl_1": {"start_from": "sft"}, "rl_2": {"start_from": "sft"}}
    write_params(run, {**PARAMS, "rl_rounds": rounds})
    for name, length in (("rl_1", 90), ("rl_2", 60)):
        rows = [{"step": step, "length/response_tokens_mean": length * step} for step in (1, 2)]
        write_curves(data / f"curves/rl_round/{name}.csv", rows)
    page = make_page(run)
    text = Reader(page).text
    assert "From sft to rl_1: 3.0 to 4.0 trials a response, 9 to 9 tokens, 6.2% to 6.2% cut off;" in text
    assert "20.0% to 10.0% of the claims are false." in text
    labels = labels_of(page)
    assert "Response length, by round. rl_1 90 → 180; rl_2 60 → 120." in labels
    assert any(label.startswith("Any of k samples, pass@k. base 10.0% at 1, 20.0% at 2") for label in labels)
    assert any("“start over”: base 1%" in label for label in labels)


def test_marks_of_long_reasoning_are_means_over_what_each_version_has_sampled(run):
    """Also of a group that a later step took; words and code that never occur have no figure."""
    texts = {
        (1, 0): ["Wait, alternatively, no.", "So 4.", "So 5.", "Alternatively, alternatively, wait"],
        (2, 0): ["wait"],
        (3, 2): ["So 4.", "```python", "", "wait, what?"],
    }
    known = {"problem_id": "p", "sample_index": 0, "response_tokens": 1, "token_ids": [1], "rollout_logprobs": [-0.5]}
    known |= {"reward": 0.0, "verdict": "wrong", "is_truncated": False, "is_trained": True}
    rows = [
        {**known, "step": step, "policy_version": version, "response": text}
        for (step, version), of_step in texts.items()
        for text in of_step
    ]
    write_table(rows, run / "data/rollouts/rl_1.parquet", ROLLOUT)
    write_params(run, {**PARAMS, "grade": {"emergence_keywords": ["wait", "retry"]}})
    curve = read(run).round_curves["rl_1"].set_index("step")
    marks = ["branching_frequency", "coding_rate", "keyword_rate_wait", "keyword_rate_retry"]
    assert curve.loc[1, marks].tolist() == [3 / 5, 0, 3 / 5, 0]
    assert curve.loc[3, marks].tolist() == [0, 1 / 4, 1 / 4, 0]
    assert curve.loc[[2, 4], marks].isna().all(axis=None) and curve["accuracy/mean"].notna().all()
    labels = labels_of(make_page(run))
    assert {
        "Words of reflection. “wait” 60% → 25%.",
        "Branching. “alternatively,” in a response 0.6 → 0.",
        "Responses with Python code. share of sampled 0% → 25%.",
    } <= set(labels)


def params(**changed):
    return lambda run: write_params(run, {**PARAMS, **changed})


def without(name: str):
    return lambda run: (run / "data" / name).unlink()


def judge_by_a_users_function(run: Path) -> None:
    verdicts = run / "data/verdicts/sft.parquet"
    write_table(pandas.read_parquet(verdicts).assign(path="custom/mine.py: is_right"), verdicts, VERDICT)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (judge_by_a_users_function, ["Responses were judged by custom/mine.py: is_right of this project"]),
        # What RL added stands beside the gain over an earlier baseline.
        (
            params(report={**PARAMS["report"], "baseline_policy": "base"}),
            ["points from base to rl_1", "From sft, avg@4: +62.5 points. rl_1 scores higher than sft"],
        ),
        (
            params(policies=["sft"], rl_rounds={}),
            ["sft is the last policy and the baseline, so there is no comparison.", "This run has no RL rounds."],
        ),
        (without("curves/sft.csv"), ["This run has no loss curve."]),
        (without("metrics/grade/rl_1.json"), ["Not graded: rl_1."]),
        (without("responses/sft.parquet"), ["No paired difference: it needs graded responses of both sft and rl_1."]),
        (without("metrics/curate.json"), ["No stage has looked for contamination yet."]),
    ],
)
def test_what_differs_in_a_run_is_told(run, unchanged, change, told):
    change(run)
    page = make_page(run)
    for words in told:
        assert words in Reader(page).text and words not in Reader(unchanged[1]).text


def test_nothing_at_all_gives_a_page_that_says_so(tmp_path):
    report = {**PARAMS["report"], "notes": "", "published": {}}
    write_params(tmp_path, {"seed": 0, "policies": ["base"], "rl_rounds": None, "sources": {}, "report": report})
    text = Reader(make_page(tmp_path)).text
    assert "No policy is graded yet" in text and "No data stage has counted its rows yet." in text
    assert "better" not in text


def test_rounds_that_branch_start_where_their_parent_ends():
    curve = pandas.DataFrame({"step": [1, 2, 3]})
    rounds = {"wide": "first", "first": "sft", "narrow": "first", "last": "narrow", "absent": "last"}
    segments = join_rounds({name: curve for name in rounds if name != "absent"}, rounds)
    assert {part.name: part.start for part in segments} == {"wide": 3, "first": 0, "narrow": 3, "last": 6}
    assert [part.name for part in segments if part.is_on_line] == ["first", "narrow", "last"]


def test_broken_files_are_named_with_the_remedy(run):
    place = run / "data/metrics/curate.json"
    place.write_text('{"rows/in": "many"}')
    with pytest.raises(UserError, match=r"curate\.json is not a metrics file .*dvc repro"):
        make_page(run)
    place.unlink()
    verdicts = run / "data/verdicts/sft.parquet"
    write_table(pandas.read_parquet(verdicts).iloc[1:], verdicts, VERDICT)
    with pytest.raises(UserError, match=r"lacks verdicts .* `dvc repro grade@sft`"):
        make_page(run)


def test_graph_on_the_page_has_every_stage_of_the_graph(run):
    found = read(run)
    lanes = graph_lanes(found.stages, found.rounds)
    shown = {name.partition("@")[0] for _, groups in lanes for names in groups for name in names}
    stages = yaml.safe_load((PROJECT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    pictures = {name for name, stage in stages.items() if stage.get("foreach", "${policies}") not in LOOPS}
    assert shown == set(stages) - {"code"} - pictures
