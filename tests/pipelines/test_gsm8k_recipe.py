"""The recipe `gsm8k-smollm2` at miniature size: real rows, real pages, real vLLM; only the policy is tiny.

The clone has no other folder next to it and no mirror: each file comes from its URL, served by a loopback server.
"""

import hashlib
import json
from urllib.parse import urlsplit

import pytest

from stages.engines.policies.tokenizers import load_tokenizer
from stages.foundations.files import load_yaml
from stages.foundations.machine import MIRROR_VARIABLE
from tests.fakes.file_server import MIRROR, mirrored, serving
from tests.fakes.miniature import copy_project, dvc, stages_run, use_miniature
from tests.fakes.tiny_policy import write_tiny_policy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not MIRROR.is_dir(), reason=f"needs the recipe's files, of which {MIRROR} holds copies"),
]

MINIATURE = {
    "policies": ["rl_1"],
    "report.baseline_policy": "rl_1",
    "sampler.max_model_tokens": 500,
    "sampler.kv_cache_gib": 0.5,
    "trainer.threads": 1,
    "sources.gsm8k_train.from.max_rows": 80,
    "sources.gsm8k_test.from.max_rows": 20,
    "collect_web.sources.algebra_trigonometry.max_pages": 4,
    "collect_web.sources.statistics.max_pages": 4,
    "curate.max_problem_characters": 200,
    "curate.validation_rows": 2,
    "demonstrate.sources": [
        {"kind": "web", "max_rows": None},
        {"kind": "given", "sources": ["gsm8k_train"], "max_rows": 20},
    ],
    "demonstrate.validation_rows": 2,
    "sft.steps": 3,
    "sft.warmup_steps": 1,
    "sft.validate_every_steps": 3,
    "rl.group_size": 2,
    "rl.max_response_tokens": 8,
    "rl.overlong.buffer_tokens": 2,
    "rl.dynamic_sampling": {"kind": "none"},
    "rl_rounds.rl_1": {
        "start_from": "sft",
        "steps": 1,
        "warmup_steps": 1,
        "problems": "problems/train",
        "problem_slice": {"index": 0, "count": 2},
        "prompt_selection": {"kind": "all"},
    },
    "rl_rounds.rl_2": None,
    "respond.max_problems": 2,
    "respond.max_response_tokens": 8,
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    place = tmp_path_factory.mktemp("gsm8k")
    folder = place / "project"
    folder.mkdir()
    policy = write_tiny_policy(place / "tiny")
    tokenizer = load_tokenizer(policy)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    tokenizer.save_pretrained(policy)
    copy_project(folder)
    with serving(mirrored()) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv(MIRROR_VARIABLE, "")
        own = {"base": {"kind": "folder", "path": str(policy)}}
        use_miniature(folder, "gsm8k-smollm2", MINIATURE | own | served_from(server, folder))
        yield folder


def served_from(server, folder):
    """Returns the changes of the recipe's URLs, and of the lists that contain URLs."""

    def here(url):
        return f"http://127.0.0.1:{server.server_port}{urlsplit(url).path}"

    recipe = load_yaml((folder / "pipelines/recipes/gsm8k-smollm2.yaml").read_text())
    changes = {f"sources.{name}.from.url": here(one["from"]["url"]) for name, one in recipe["sources"].items()}
    for name, source in recipe["collect_web"]["sources"].items():
        path = folder / source["path"]
        header, *lines = path.read_text().splitlines()
        moved = ["\t".join([here(line.split("\t")[0]), *line.split("\t")[1:]]) for line in lines]
        path.write_text("\n".join([header, *moved]) + "\n")
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        changes[f"collect_web.sources.{name}.sha256"] = sha256
    return changes


def test_every_stage_runs_on_real_rows_and_pages(project):
    ran = stages_run(dvc(project, "repro"))
    assert ran[-1] == "report" and {"filter_web", "sft", "rl_round@rl_1", "respond@rl_1"} <= set(ran)
    metrics = {path.stem: json.loads(path.read_text()) for path in (project / "data" / "metrics").glob("*.json")}
    assert metrics["extract_web"]["candidates/all"] > 100
    assert metrics["demonstrate"]["kind/given"] > 0
    assert metrics["filter_web"]["rows/in"] == metrics["extract_web"]["candidates/all"]
    round_metrics = json.loads((project / "data" / "metrics" / "rl_round" / "rl_1.json").read_text())
    assert round_metrics["rollouts/drawn"] == 4 and round_metrics["sync/logprob_gap_max"] < 1e-4
    grades = json.loads((project / "data" / "metrics" / "grade" / "rl_1.json").read_text())
    assert {"gsm8k_test/avg_at_2_low", "gsm8k_test/avg_at_2_high", "gsm8k_test/greedy"} <= set(grades)
    assert "gsm8k_test" in (project / "reports" / "index.html").read_text()
