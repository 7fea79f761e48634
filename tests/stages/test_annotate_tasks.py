"""Tasks and configuration for Label Studio: hostile prompts stay text, pictures lose metadata, exports come back."""

import json
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy
import pandas
import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from stages.annotate.annotations import Known, checked_tables, json_rows
from stages.annotate.label_studio import (
    export_annotated,
    export_annotations,
    export_tasks,
    labelling_configuration,
    labelling_task,
    slimmed,
)
from stages.engines.images.shards import image_id, image_row, write_shards
from stages.foundations.errors import UserError
from stages.foundations.tables import ISSUES, PROMPT, RANKING, RATING, prompt_id, read_table, write_table
from tests.fakes.hostile_images import GRADIENT, saved

HOSTILE = """<img src=x onerror="alert(1)"> </script><script>alert(2)</script> {{7*7}} ' " & $image_1"""
PROMPTS = ["a cat", HOSTILE, "a dog"]
COUNTS = [4, 9, 1]


def pool(tmp_path):
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    secret = PngInfo()
    secret.add_text("parameters", "a secret path")
    rows = []
    for prompt, count in zip(PROMPTS, COUNTS, strict=True):
        for number in range(count):
            pixels = GRADIENT + numpy.uint8(len(rows) * 3)
            said = {"generator": "g", "seed": number, "source": f"{len(rows)}.png", "licence": ""}
            row = image_row(pixels, prompt_id=prompt_id(prompt), prompt=prompt, **said)
            rows.append(row | {"png": saved(Image.fromarray(pixels), pnginfo=secret)})
    write_shards(rows, tmp_path / "pool", 5)
    table = [{"prompt_id": prompt_id(p), "prompt": p, "split": "train", "source": "s"} for p in PROMPTS]
    write_table(table, tmp_path / "prompts.parquet", PROMPT)
    known = Known({prompt_id(p): p for p in PROMPTS}, {row["image_id"]: row["prompt_id"] for row in rows})
    return rows, known


@pytest.mark.parametrize("count", [2, 4, 9])
def test_the_configuration_asks_for_all_of_every_image_once(count):
    root = ElementTree.fromstring(labelling_configuration(count))
    assert len(root.findall(".//Image")) == count and len(root.findall(".//Rating")) == 3 * count
    assert {one.get("maxRating") for one in root.iter("Rating")} == {"7"}
    assert [one.get("name") for one in root.iter("Bucket")] == [f"slot_{i}" for i in range(1, 6)]
    names = [one.get("name") for tag in ("Image", "Rating", "Choices", "List", "Ranker") for one in root.iter(tag)]
    assert len(set(names)) == len(names)
    assert {one.get("toName") for one in root.iter("Rating")} == {f"image_{i}" for i in range(1, count + 1)}
    assert [one.get("value") for one in root.find(".//Choices")] == list(ISSUES)
    task = labelling_task("p", "a cat", ["x"] * count, ["y"] * count)["data"]
    asked = {value[1:] for one in root.iter() if (value := one.get("value", "")).startswith("$")}
    assert asked <= set(task) and len(task["items"]) == count


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_no_hostile_text_becomes_markup():
    task = labelling_task("p", HOSTILE, ["a" * 64], ['x" onerror="alert(1)'])["data"]
    parser = Tags()
    parser.feed("".join(item["html"] for item in task["items"]))
    assert [(tag, sorted(given)) for tag, given in parser.found] == [("img", ["alt", "src"])]
    assert parser.found[0][1]["src"] == 'x" onerror="alert(1)'
    assert task["prompt"] == HOSTILE  # `$prompt` of a Header is shown as text


def test_the_folder_has_a_project_for_each_number_of_images_and_bare_pictures(tmp_path):
    rows, _ = pool(tmp_path)
    written = export_tasks(tmp_path / "pool", tmp_path / "out", "/x/", 9, 1, seed=1)
    assert written == {"4_images": 1, "9_images": 1}  # one image is nothing to rank
    (task,) = json.loads((tmp_path / "out" / "9_images" / "tasks.json").read_text())
    assert task["data"]["prompt"] == HOSTILE and len(set(task["data"]["image_ids"])) == 9
    assert task["data"]["image_1"] == f"/x/{task['data']['image_ids'][0]}.png"
    pictures = sorted((tmp_path / "out" / "images").iterdir())
    assert len(pictures) == 13 and all(b"secret" in row["png"] for row in rows)
    from PIL import Image

    for path in pictures:
        assert b"secret" not in path.read_bytes() and b"tEXt" not in path.read_bytes()
        assert image_id(numpy.asarray(Image.open(path))) == path.stem
    with pytest.raises(UserError, match="exists"):
        export_tasks(tmp_path / "pool", tmp_path / "out", "/x/", 9, 1, seed=1)


def label_studio_export(tasks):
    """What Label Studio 1.23.2 exported of such tasks, with several annotators' answers put in."""
    exported = []
    for number, task in enumerate(tasks, start=1):
        images = task["data"]["image_ids"]
        slots = {f"slot_{slot}": images[slot - 1 :: 5] for slot in range(1, 6)}
        result = [{"from_name": "ranking", "to_name": "items", "type": "ranker", "value": {"ranker": slots}}]
        for index in range(1, len(images)):  # the last one is not rated
            for aspect, points in (("overall", 8 - index if index < 7 else 1), ("fidelity", 4)):
                value = {"rating": points}
                result.append(
                    {"from_name": f"{aspect}_{index}", "to_name": f"image_{index}", "type": "rating", "value": value}
                )
        flags = {"choices": ["blur", "violent"]}
        result.append({"from_name": "issues_2", "to_name": "image_2", "type": "choices", "value": flags})
        said = {"was_cancelled": False, "ground_truth": False, "result": result}
        annotations = [
            {"id": 1, "completed_by": 1, "lead_time": 12.5, "created_at": "2026-01-01T00:00:00Z", **said},
            {
                "id": 2,
                "completed_by": {"email": "b@example.org"},
                "lead_time": None,
                "created_at": "2026-01-02",
                **said,
            },
            {"id": 3, "completed_by": 1, "lead_time": 99.0, "created_at": "2026-01-03", **said, "ground_truth": True},
        ]
        exported.append(
            {"id": number, "data": task["data"], "annotations": annotations, "drafts": [], "file_upload": "/srv/x"}
        )
    return exported


def tables(rows, known):
    rankings, ratings, funnel, _ = checked_tables(export_annotations(rows, "x"), known)
    assert funnel.dropped_frame().empty
    return rankings, ratings


def test_an_export_becomes_tables_and_the_tables_become_it_again(tmp_path):
    _, known = pool(tmp_path)
    export_tasks(tmp_path / "pool", tmp_path / "out", "/x/", 9, 1, seed=1)
    tasks = [json.loads(path.read_text())[0] for path in sorted((tmp_path / "out").glob("*/tasks.json"))]
    exported = label_studio_export(tasks)
    rankings, ratings = tables(exported, known)
    assert len(rankings) == 6 and len(ratings) == 2 * (3 + 8)
    write_table(rankings, tmp_path / "annotations" / "rankings.parquet", RANKING)
    write_table(ratings, tmp_path / "annotations" / "ratings.parquet", RATING)
    again = tmp_path / "again"
    assert export_annotated(tmp_path / "pool", tmp_path / "annotations", again, "/x/") == {"4_images": 1, "9_images": 1}
    back = [task for path in sorted(again.glob("*/tasks.json")) for task in json.loads(path.read_text())]
    assert [one["data"] for one in back] == [one["data"] for one in tasks]
    for one, other in zip(back, exported, strict=True):
        for mine, given in zip(one["annotations"], other["annotations"], strict=True):
            assert mine["lead_time"] == given["lead_time"] and mine["ground_truth"] == given["ground_truth"]
            named = {item["from_name"]: item for item in given["result"]}
            expected = named if not given["ground_truth"] else {"ranking": named["ranking"]}
            assert {item["from_name"]: item for item in mine["result"]} == expected
    write_table(tables(back, known)[0], tmp_path / "rankings_again.parquet", RANKING)
    write_table(tables(back, known)[1], tmp_path / "ratings_again.parquet", RATING)
    for name, schema in (("rankings", RANKING), ("ratings", RATING)):
        first = read_table(tmp_path / "annotations" / f"{name}.parquet", schema)
        pandas.testing.assert_frame_equal(read_table(tmp_path / f"{name}_again.parquet", schema), first)


def test_annotations_of_a_panel_do_not_go_into_label_studio(tmp_path):
    _, known = pool(tmp_path)
    export_tasks(tmp_path / "pool", tmp_path / "out", "/x/", 9, 1, seed=1)
    tasks = [json.loads(path.read_text())[0] for path in (tmp_path / "out").glob("*/tasks.json")]
    rankings, ratings = tables(label_studio_export(tasks), known)
    write_table(rankings.assign(source="panel"), tmp_path / "annotations" / "rankings.parquet", RANKING)
    write_table(ratings, tmp_path / "annotations" / "ratings.parquet", RATING)
    with pytest.raises(UserError, match="panel"):
        export_annotated(tmp_path / "pool", tmp_path / "annotations", tmp_path / "again", "/x/")


def test_the_commands(tmp_path):
    _, known = pool(tmp_path)
    run = CliRunner()
    flags = ["--pool", str(tmp_path / "pool")]
    done = run.invoke(
        app, ["annotations", "export", "round_1", "--out", str(tmp_path / "out"), "--images", "9", *flags]
    )
    assert done.exit_code == 0 and json.loads(done.stdout)["tasks"] == {"4_images": 1, "9_images": 1}
    tasks = [json.loads(path.read_text())[0] for path in sorted((tmp_path / "out").glob("*/tasks.json"))]
    exported = label_studio_export(tasks)
    for points in (99, float("nan")):
        bad = {"from_name": "overall_1", "to_name": "image_1", "value": {"rating": points}}
        exported[0]["annotations"].append(
            {"completed_by": 5, "result": [exported[0]["annotations"][0]["result"][0], bad]}
        )
    (tmp_path / "export.json").write_text(json.dumps([*exported, 3]))
    flags += ["--prompts", str(tmp_path / "prompts.parquet"), "--out", str(tmp_path / "round_1.json")]
    done = run.invoke(app, ["annotations", "import", "round_1", str(tmp_path / "export.json"), *flags])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["counts"]["rows/in"] == 9 and told["counts"]["rows/kept"] == 6
    reasons = ("rating_out_of_range", "rating_not_a_number", "malformed_row")
    assert [told["counts"][f"dropped/{reason}"] for reason in reasons] == [1, 1, 1]
    text = (tmp_path / "round_1.json").read_text()
    assert "example.org" not in text and "/srv" not in text
    assert told["ranking_rounds.round_1.annotations"]["path"] == str(tmp_path / "round_1.json")
    slim = json_rows(text.encode(), "round_1.json")
    assert slimmed(slim) == slim  # nothing more to take away
    whole = checked_tables(export_annotations(exported, "x"), known)
    again = checked_tables(export_annotations(slim, "x"), known)
    pandas.testing.assert_frame_equal(whole[0], again[0])
    pandas.testing.assert_frame_equal(whole[1], again[1])
    missing = run.invoke(app, ["annotations", "import", "round_1", "none.json", *flags])
    assert missing.exit_code == 2 and "does not exist" in missing.output
