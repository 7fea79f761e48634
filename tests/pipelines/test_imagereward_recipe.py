"""The recipe imagereward-blip-large: the paper's settings, and a miniature of it through every stage."""

import json
from pathlib import Path

import pytest

from pipelines.comparing.results import compare_pictures, find_pictures, picture_table
from pipelines.graph.schema import check_params, check_values
from stages.foundations.errors import UserError
from tests.fakes.graph_in_process import run_graph
from tests.fakes.picture_recipes import IMAGEREWARD, write_downloads

PROJECT = Path(__file__).resolve().parents[2]


def test_the_settings_are_the_papers():
    """arXiv 2304.05977, sections 3.1, 4 and appendix; the recipe's comments list the deviations."""
    params = check_params(IMAGEREWARD)
    model, feedback = params["reward_model"], params["refl"]
    assert (model.frozen_fraction, model.optimizer.learning_rate, model.epochs) == (0.7, 1e-5, 10)
    assert model.final_learning_rate_fraction == 0 and model.head.widths == [1024, 128, 64, 16]
    assert feedback.feedback.window == (30, 39) and feedback.sampling_steps == 40
    assert feedback.feedback.bound == 2 and feedback.optimizer.learning_rate == 1e-5
    assert feedback.batch_images == feedback.pretraining.batch_images == 64
    assert params["refl_rounds"]["refl_1"].reward_weight == 1e-3


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Makes a folder in which every stage of the miniature has run, in the order of the graph."""
    folder = tmp_path_factory.mktemp("imagereward")
    (folder / "downloads").mkdir()
    params = write_downloads(folder / "downloads")
    check_values(params, "the miniature")
    run_graph(folder, params)
    return folder


def test_the_miniature_runs_every_stage(made):
    metrics = json.loads((made / "data/metrics/refl/refl_1.json").read_text())
    assert metrics["refl/updates"] == 2 and "refl/held_out/gain" in metrics
    evaluation = json.loads((made / "data/metrics/reward_evaluation/round_1.json").read_text())
    assert 0 <= evaluation["preference/accuracy/reward"] <= 1
    assert (made / "data/images/generated/round_2/after").is_dir()
    page = (made / "reports/text_to_image.html").read_text()
    assert "ImageReward with BLIP-large" in page and page.count("data:image/png;base64,") > 6


def test_generators_are_compared_by_pictures_from_the_same_noise(made):
    tables = find_pictures(["control_1", "refl_1"], made)
    found = {one.quantity: one for one in compare_pictures(tables)}
    metrics = json.loads((made / "data/metrics/refl_control/refl_1.json").read_text())
    assert found["reward"].difference.estimate == pytest.approx(metrics["gain_over_control/reward/mean"])
    assert found["reward"].pictures == 8 and "refl_1 less control_1" in picture_table(list(found.values()))
    assert find_pictures(["somebody", "nobody"], made) is None
    with pytest.raises(UserError, match="base has no pictures of feedback, refl_1 has"):
        find_pictures(["base", "refl_1"], made)
