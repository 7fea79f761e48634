"""`retrace simulate`: tables, files, and one sentence for what it cannot do."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.simulating.replica import SimulationResult
from pipelines.simulating.schedules import POLICIES
from pipelines.simulating.setting import paper_settings
from pipelines.simulating.table import Cell, draw, ratios, sentence

PROJECT = Path(__file__).resolve().parents[3]
KEYS = ["model", "gpus", "policy", "seconds_per_step", "rollout_gpus", "staleness_mean", "staleness_max", "kv_used"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def cell(setting, policy, seconds):
    outcome = SimulationResult(seconds, 8, {0: 9, 2: 1}, {1: 10}, 0.5, 0.1, 1e3, None, 10, 10, 0)
    return Cell(setting, policy, (outcome,))


def test_a_line_of_json_for_each_cell_and_the_picture_in_a_file(tmp_path):
    arguments = ["laptop", "--mean-tokens", 30, "--gpus", 3, "--steps", 1, "--jobs", 1]
    arguments += ["--policies", "synchronous,one_step", "--json", "--out", tmp_path / "plot.svg"]
    done = invoke(*arguments)
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(line)[:8] for line in lines] == [KEYS, KEYS]
    assert [(line["policy"], line["gpus"], line["model"]) for line in lines] == [
        ("synchronous", 3, "random Llama"),
        ("one_step", 3, "random Llama"),
    ]
    assert lines[0]["rollout_gpus"] == 3 > lines[1]["rollout_gpus"] >= 1
    assert lines[0]["staleness_max"] == 0 and 0 < lines[1]["kv_used"] < 1
    assert done.stdout == invoke(*arguments).stdout
    assert ElementTree.fromstring((tmp_path / "plot.svg").read_text()).tag.endswith("svg")


def test_it_runs_without_torch_and_ray():
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "ray", "vllm", "transformers", "deepspeed"):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
from pipelines.cli import app
app(["simulate", *sys.argv[1:], "--steps", "1", "--jobs", "1", "--policies", "synchronous", "--json"])
"""
    for arguments in (["--paper", "--model", "7B", "--gpus", "256"], ["laptop", "--mean-tokens", "30"]):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["policy"] == "synchronous"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--paper", "--gpus", 0], "0 GPUs simulate nothing: give --gpus 1 or more"),
        (["--paper", "--model", "8B"], "no model '8B' in the paper: there are 7B, 32B, 72B"),
        (["--paper", "--model", "72B", "--gpus", 4], "a replica of 72B takes 8 GPUs (tensor parallel) and there are 4"),
        (["--paper", "--policies", "laminar"], "no policy 'laminar': there are synchronous, "),
        (["--paper", "laptop"], "--paper has the sizes of the paper: leave laptop out, or the option"),
        (["--paper", "--out", "plot.png"], "--out plot.png: give a name that ends in .svg"),
        (["laptop"], "no lengths of responses are known: run the recipe first"),
        (["laptop", "--data", "nowhere"], "--data nowhere is no folder"),
        (["laptop", "--mean-tokens", 500], "--mean-tokens 500 is more than rl.max_response_tokens, 80"),
        (["laptop", "--mean-tokens", 30, "--device", "cpu"], "--device cpu: the simulator knows GPUs: A100, "),
        (["laptop", "--mean-tokens", 30, "--device", "TPU"], "no GPU 'TPU' in the table"),
        (["laptop", "--mean-tokens", 30, "--model", "GPT-9"], "the sizes of 'GPT-9' are not known here"),
        (["laptop", "--mean-tokens", 30, "--gpus", 1], "one_step trains beside its replicas"),
        (["laptop", "--mean-tokens", 30, "--model", "Qwen2.5-32B", "--device", "L40S"], "Qwen2.5-32B leaves room"),
        (["nosuch"], "no recipe 'nosuch': there are"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, told):
    done = invoke(*arguments, "--jobs", 1)
    assert done.exit_code == 2
    assert done.output.startswith(f"error: {told}") and done.output.count("\n") == 1


def test_a_recipe_takes_the_lengths_of_its_rollouts(tmp_path):
    (tmp_path / "rollouts").mkdir()
    rows = [(step, f"p{problem}", 10 + problem) for step in range(2) for problem in range(6) for _ in range(16)]
    columns = dict(zip(("step", "problem_id", "response_tokens"), zip(*rows, strict=True), strict=True))
    for name in ("rl_1", "rl_2", "rl_3"):
        parquet.write_table(pyarrow.table(columns), tmp_path / "rollouts" / f"{name}.parquet")
    done = invoke("laptop", "--data", tmp_path, "--gpus", 3, "--steps", 1, "--jobs", 1)
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("warning: random Llama is too small for this simulator: reading its 690,176 w")
    assert done.stderr.count("\n") == 1
    first, *rest = done.stdout.splitlines()
    assert first.startswith("laptop on 3 x H100 would ") and first.endswith(".")
    assert any(line.startswith("  responses: those of 12 groups in ") for line in rest)
    assert [line.split()[0] for line in rest[2 : 2 + len(POLICIES)]] == list(POLICIES)


def test_ratios_by_hand():
    settings = paper_settings()
    seconds = {"synchronous": 4.0, "one_step": 3.0, "stream": 3.0, "partial": 2.0, "asynchronous_repack": 1.0}
    cells = [cell(one, policy, value) for one in settings for policy, value in seconds.items()]
    cells[0] = cell(settings[0], "synchronous", 7.0)  # the smallest setting of all
    found = ratios(cells)
    assert found["mean over synchronous"] == pytest.approx((14 * 4 + 7) / 15)
    assert found["largest over synchronous"] == 7 and found["mean over partial"] == 2
    assert found["largest scale, over all"] == pytest.approx((4 + 3 + 3 + 2) / 4)
    assert cells[1].as_dict()["staleness_mean"] == pytest.approx(0.2)


def test_a_recipe_that_gains_nothing_is_told_so_and_of_two_as_fast_the_newer_is_named():
    setting = paper_settings()[0]
    told = sentence([cell(setting, "synchronous", 1.0), cell(setting, "stream", 2.0)], "mine")
    assert told.startswith("mine on 16 x H800 would gain nothing: 1 s a step with synchronous")
    told = sentence(
        [cell(setting, "synchronous", 2.0), cell(setting, "stream", 1.001), cell(setting, "x", 1.0)], "mine"
    )
    assert "would train 2.00 times as fast with stream as with synchronous" in told


def test_small_models_are_doubted_and_those_of_the_paper_are_not():
    settings = paper_settings()
    assert not any(one.doubt for one in settings)
    small = replace(settings[0], model=replace(settings[0].model, parameters=2e9))
    assert "reading its 2,000,000,000 weights takes 1.5 ms of a decode step" in small.doubt
    assert "fixed cost is 2 ms. Trust figures for models from about 2.7B" in small.doubt


@pytest.mark.parametrize(("gpus", "told"), [(1, "1 GPU would generate"), (8, "8 GPUs would generate")])
def test_one_gpu_is_said_in_the_singular(gpus, told):
    first, second = (cell(paper_settings()[0], name, seconds) for name, seconds in (("a", 2.0), ("b", 1.0)))
    best = replace(second, outcomes=(replace(second.outcomes[0], rollout_gpus=gpus),))
    assert f"1 s a step instead of 2 s. {told}" in sentence([first, best], "mine")


def test_the_picture_escapes_and_repeats():
    cells = [cell(one, policy, 1.0 + place) for one in paper_settings() for place, policy in enumerate(POLICIES)]
    picture = draw(cells, "a < b")
    assert picture == draw(cells, "a < b")
    tree = ElementTree.fromstring(picture)
    labels = [chart.get("aria-label") for chart in tree.findall("{http://www.w3.org/2000/svg}svg")]
    assert len(labels) == 3 and f"{POLICIES[0]} 1 → 1" in labels[0]
    assert all(policy in label for label in labels for policy in POLICIES)
