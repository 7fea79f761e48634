"""The page of a text-to-image recipe: pictures by rule, prompts stay text, it reports hacking, parts may be missing."""

import base64
import io
import json
import re
from pathlib import Path

import numpy
import pandas
import pytest
import yaml
from PIL import Image

from stages.__main__ import main
from stages.foundations.errors import UserError
from stages.foundations.files import write_curves, write_metrics
from stages.foundations.tables import ANNOTATOR, FEEDBACK_IMAGE, IMAGE_SCORE, PAIR, QUANTITIES, read_table, write_table
from stages.images.engines.pictures.shards import png_of, write_shards
from stages.images.t2i_report.choosing import changes, embed, spread_over_kinds, wins
from stages.images.t2i_report.findings import feedback_of
from stages.images.t2i_report.sections import scorer_tables
from tests.fakes.one_stage import pair_row, picture_row, stage_flags
from tests.stages.test_report import Reader

PROJECT = Path(__file__).resolve().parents[2]
HOSTILE = "\"><script>alert(1)</script><img src=x onerror='alert(2)'> \u202ea cat"
PROMPTS = {"p1": HOSTILE, "p2": "a red circle"}
REPORT = {
    "title": "Shapes <here>",
    "notes": "",
    "shown_prompts": 2,
    "shown_disagreements": 3,
    "shown_changes": 1,
    "picture_side": 32,
    "max_pictures_mib": 1.0,
}
PARAMS = {
    "seed": 4,
    "t2i": {"shapes": {}},
    "ranking_rounds": {"round_1": {"foreign": None, "annotations": None, "also": "round_1"}},
    "refl_rounds": {"refl_1": {"start_from": "base"}, "control_1": {"start_from": "base"}},
    "refl_controls": {"refl_1": "control_1"},
    "t2i_report": REPORT,
}
REWARDS = {"p1": (3.0, 1.0, 2.0), "p2": (0.0, 2.0, 5.0)}
"""Rewards of the three images of each prompt, which people like in this order."""


def picture(value, side=8):
    return numpy.full((side, side, 3), value, dtype=numpy.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Makes a finished run: two test prompts of three images, an excluded annotator, feedback that hacks, a control."""
    folder = tmp_path_factory.mktemp("t2i_report")
    data = folder / "data"
    write_params(folder)
    rows, pairs, scores = [], [], []
    for number, (prompt_id, prompt) in enumerate(PROMPTS.items()):
        ids = []
        for place in range(3):
            side = 200 if place == 2 else 8
            pixels = picture(10 * (3 * number + place), side)
            row = picture_row(pixels, prompt, prompt_id=prompt_id, generator=f"steps_{place}")
            rows.append(row)
            ids.append(row["image_id"])
            scored = {"prompt_id": prompt_id, "image_id": ids[-1], "scorer": "reward"}
            scores.append(scored | {"score": REWARDS[prompt_id][place]})
        pairs += [pair_row(prompt_id, ids[one], ids[two]) for one, two in ((0, 1), (0, 2), (1, 2))]
    pairs.append(pair_row("p2", pairs[-1]["worse_image_id"], pairs[-1]["better_image_id"], "train"))
    write_shards(rows, data / "images/pool/round_1", images_per_shard=4)
    write_table(scores, data / "image_scores/round_1.parquet", IMAGE_SCORE)
    write_table(pairs, data / "preferences/round_1/pairs.parquet", PAIR)
    judged = [annotator("ann"), annotator("<b>bob", "low_agreement")]
    write_table(judged, data / "preferences/round_1/annotators.parquet", ANNOTATOR)
    for name in PARAMS["refl_rounds"]:
        write_table(feedback_rows(), data / f"images/feedback/{name}.parquet", FEEDBACK_IMAGE)
        write_metrics(data / f"metrics/refl/{name}.json", feedback_metrics(is_hacked=name == "refl_1"))
        curve = [{"step": step, "validation/reward": step / 2, "validation/truth": 0.5 - step / 10} for step in (0, 2)]
        write_curves(data / f"curves/refl/{name}.csv", curve)
    write_metrics(data / "metrics/reward_evaluation/round_1.json", evaluation_metrics())
    alphas = {"agreement/alpha_rank": 0.712, "agreement_of_all/alpha_rank": 0.49}
    write_metrics(data / "metrics/preferences/round_1.json", alphas)
    ends = {"mean": -0.1, "low": -0.2, "high": -0.05}
    over = {f"gain_over_control/{name}/{end}": ends[end] for name in ("reward", "truth") for end in ends}
    write_metrics(data / "metrics/refl_control/refl_1.json", over)
    write_metrics(data / "metrics/image_pool/round_1.json", {"rows/in": 9, "rows/kept": 6, "dropped/image_broken": 3})
    return folder


@pytest.fixture(scope="module")
def page(run):
    return make_page(run)


def write_params(folder, **changed):
    params = PARAMS | {"t2i_report": REPORT | changed}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def annotator(name, reason=""):
    measures = {"agreement": 0.8, "consistency": 0.9, "gold_accuracy": None, "median_seconds": 30.0}
    counts = {"rankings": 9, "agreement_pairs": 50}
    return {"annotator_id": name, **counts, **measures, "is_kept": not reason, "reason": reason}


def feedback_rows():
    rows = []
    for seed, (reason, change) in enumerate((("gain", 0.2), ("gain", 0.4), ("middle", 0.0), ("loss", -0.3), ("", 0.1))):
        row = {f"{name}_before": 0.5 for name in QUANTITIES} | {f"{name}_after": 0.5 for name in QUANTITIES}
        pngs = [png_of(picture(seed * 9 + place)) if reason else None for place in (0, 1)]
        rows.append(
            {"prompt_id": "p2", "prompt": PROMPTS["p2"], "seed": seed, **row, "truth_after": 0.5 + change}
            | {"shown_for": reason, "png_before": pngs[0], "png_after": pngs[1]}
        )
    return rows


def feedback_metrics(is_hacked):
    found = {"refl/hacked": float(is_hacked), "refl/reward_without_truth": float(is_hacked)}
    found |= {"refl/selected_update": 2, "refl/updates": 2, "refl/saturation/change": 0.34}
    for name in ("reward", "held_out", "truth", "saturation"):
        found |= {f"refl/{name}/{part}": 0.3 for part in ("before", "after", "gain", "low", "high")}
    return found


def evaluation_metrics():
    found = {"pairs/test": 6, "prompts/test": 2, "preference/accuracy/random": 0.5}
    for name, value in {"clip": 0.55, "reward": 0.62, "annotator": 0.8, "truth": 0.9}.items():
        key = f"preference/accuracy/{name}"
        found |= {key: value, f"{key}/low": value - 0.05, f"{key}/high": value + 0.05}
    gain = "gain/reward_model_minus_clip"
    return found | {f"{gain}/mean": 0.07, f"{gain}/low": 0.01, f"{gain}/high": 0.13, f"{gain}/p_value": 0.02}


def make_page(folder):
    places = {"metrics": "metrics", "curves": "curves", "rankings": "preferences", "pool": "images/pool"}
    places |= {"scores": "image_scores", "feedback": "images/feedback"}
    places = {name: folder / "data" / place for name, place in places.items()}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    main(stage_flags("t2i_report@NAME", folder, graph=PROJECT / "dvc.yaml", **places))
    return (folder / "out").read_text(encoding="utf-8")


def images_of(page):
    return [attributes for tag, attributes in Reader(page).tags if tag == "img"]


def section(page, name):
    return page[page.index(f'<section id="{name}">') :].partition("</section>")[0]


def test_best_and_worst_are_those_of_people_and_of_the_reward_model(page):
    strip = section(page, "pictures")
    second = strip[strip.index("a red circle") :]
    told = re.findall(r"<figcaption>([^<]+)<span>won (\d+)%</span><span>reward ([\d.]+)", second)
    assert told[:4] == [
        ("best by people", "100", "0.00"),
        ("best by the model", "0", "5.00"),
        ("worst by people", "0", "5.00"),
        ("worst by the model", "100", "0.00"),
    ]


def test_the_prompts_that_are_shown_are_of_all_kinds_and_of_many_words():
    prompts = {
        "1": "a green circle",
        "2": "a green square",
        "3": "two green circles",
        "4": "a red triangle",
        "5": "two blue squares",
        "6": "a photo of a cat",
    }
    # Objects, counts, others; then the object with two new words of three, and the last count.
    assert spread_over_kinds(prompts, 5) == ["1", "5", "6", "4", "3"]
    assert spread_over_kinds(prompts, 2) == ["1", "5"]
    assert sorted(spread_over_kinds(prompts, 9)) == sorted(prompts)


def test_what_scorers_pick_is_a_table_beside_how_they_order():
    """With eleven columns with intervals, the last two were cut off at the edge of the page."""
    picks = {f"{kind}_at_{k}/reward": 0.5 for kind in ("recall", "filter") for k in (1, 2, 10)}
    metrics = evaluation_metrics() | picks | {"model_ranking/spearman/reward": 1.0}
    ordering, picking = (Reader(one).text for one in scorer_tables("round_1", metrics))
    assert "Scorer pairs, ties half generators, Spearman chance 0.500 –" in ordering
    assert "Scorer recall@1 recall@2 recall@10 filter@1 filter@2 filter@10 reward model 0.500" in picking
    assert picking.count("0.500") == 6 and "CLIP" not in picking
    assert len(scorer_tables("round_1", evaluation_metrics())) == 1


def test_disagreements_are_the_widest_wrong_margins_one_of_a_prompt(page):
    notes = re.findall(r"margin ([\d.]+)", section(page, "disagreements"))
    assert notes == ["5.00", "1.00"]


def test_an_annotator_who_is_left_out_is_named_with_the_reason(page):
    told = section(page, "annotators")
    assert "Left out: <b>&lt;b&gt;bob</b> (low agreement)." in told
    assert "alpha of ranks: 0.71 of what is kept, 0.49 of all." in told


def test_hacked_is_said_and_the_control_decides_what_is_better(page):
    result = section(page, "result")
    assert "Hacked: the reward rose while the truth fell" in result
    assert "−0.100" in result and "over the control without a reward" in result
    assert "Saturation rose by 34%, more than 20%." in result
    calm = feedback_of("refl", "refl_1", feedback_metrics(is_hacked=False), None)
    assert calm.verdict == "better" and not calm.is_over_control
    assert not [sentence for sentence in calm.sentences if "Hacked" in sentence]


def test_the_result_has_each_scorer_and_what_feedback_did(run, page):
    result = json.loads((run / "result").read_text())
    assert [(one["policy"], one["value"]) for one in result["scores"]] == [
        ("chance", 0.5),
        ("CLIP score", 0.55),
        ("an annotator", 0.8),
        ("truth", 0.9),
        ("reward model", 0.62),
    ]
    assert {(one["problems"], one["unit"]) for one in result["scores"]} == {(6, "pairs")}
    (gain,) = result["gains"]
    assert (gain["policy"], gain["baseline"], gain["metric"]) == ("refl_1", "control_1", "truth")
    assert (gain["value"], gain["low"], gain["high"], gain["unit"]) == (-0.1, -0.2, -0.05, "score")
    assert result["warnings"][0].startswith("refl_1: Hacked: the reward rose while the truth fell")


def test_prompts_are_text_and_stand_in_the_alt_texts(page):
    images = images_of(page)
    assert page.count("<script") == 2, "the times and the page's own"
    assert "onerror" not in {name for image in images for name in image}
    assert {image["alt"] for image in images} == {HOSTILE.replace("\u202e", "⟨U+202E⟩"), "a red circle"}
    assert all(image["src"].startswith("data:image/png;base64,") for image in images)


def test_equal_runs_give_equal_pages(run, page):
    assert make_page(run) == page


def test_a_run_that_has_made_nothing_yet_has_a_page(tmp_path):
    write_params(tmp_path)
    page = make_page(tmp_path)
    assert page.count('class="absent"') >= 8 and "<img" not in page


def test_large_pictures_are_made_smaller_and_small_ones_are_left(page):
    sizes = {(int(image["width"]), "pixels" in image.get("class", "")) for image in images_of(page)}
    assert sizes == {(8, True), (32, False)}


def test_pictures_stay_within_the_limit():
    noise = numpy.random.default_rng(0).integers(0, 256, (64, 48, 3), dtype=numpy.uint8)
    pngs = {str(number): png_of(noise) for number in range(10)}
    found = embed(pngs, side=64, most_mib=0.03)
    content = [base64.b64decode(one.uri.partition(",")[2]) for one in found.values()]
    assert sum(map(len, content)) <= 0.03 * 2**20
    with Image.open(io.BytesIO(content[0])) as image:
        assert image.size == (found["0"].width, found["0"].height) and abs(image.height * 3 / 4 - image.width) <= 1
    with pytest.raises(UserError, match=r"10 pictures are .* at 16 pixels: show fewer"):
        embed(pngs, side=64, most_mib=0.001)


def test_changes_are_shown_by_their_rule(run):
    table = read_table(run / "data/images/feedback/refl_1.parquet", FEEDBACK_IMAGE)
    shown = changes("refl_1", table, 5)
    assert {reason: [strip.note for strip in strips] for reason, strips in shown.items()} == {
        "gain": ["truth score +0.40", "truth score +0.20"],
        "middle": ["truth score +0.00"],
        "loss": ["truth score -0.30"],
    }
    unknown = table.assign(truth_before=None, truth_after=None)
    assert changes("refl_1", unknown, 1)["gain"][0].note == "held-out score +0.00"


def test_wins_count_by_weight():
    pairs = pandas.DataFrame(
        {"better_image_id": ["a", "a", "b"], "worse_image_id": ["b", "c", "a"], "weight": [3.0, 1.0, 1.0]}
    )
    assert wins(pairs).to_dict() == pytest.approx({"a": 0.8, "b": 0.25, "c": 0.0})
