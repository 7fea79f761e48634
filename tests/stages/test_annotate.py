"""annotate: every bad annotation has a counted reason, and valid ones are stored unchanged.

Tasks for Label Studio: hostile prompts stay text, pictures lose metadata, exports can be read.
"""

import gzip
import hashlib
import json
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy
import pandas
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from typer.testing import CliRunner

from pipelines.cli import app
from stages.foundations.errors import UserError
from stages.foundations.tables import (
    DROPPED,
    ISSUES,
    PROMPT_ANNOTATION,
    PROMPT_CATEGORIES,
    PROMPT_PROBLEMS,
    RANKING,
    RATING,
    prompt_id,
    read_table,
    write_table,
)
from stages.images.annotate.annotations import (
    Known,
    checked_tables,
    json_rows,
    prompt_annotations,
    prompts_with_problems,
    ranking_annotations,
    vote_annotations,
)
from stages.images.annotate.label_studio import export_annotations, labelling_configuration, labelling_task, slimmed
from stages.images.engines.pictures.shards import image_id, read_image_rows, write_shards
from stages.images.preferences.run import agreement_measures, count_ties, pairs_of, vote_measures
from tests.fakes.hostile_images import GRADIENT, saved
from tests.fakes.one_stage import picture_row, recipe, run_stage, write_prompts

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "image_prefs"
needs_real_rows = pytest.mark.skipif(not REAL.is_dir(), reason=f"needs the files of {REAL}")
CAT, DOG = prompt_id("a cat"), prompt_id("a dog")
IMAGES = ["a" * 64, "b" * 64, "c" * 64]
KNOWN = Known(
    {CAT: "a cat", DOG: "a dog"},
    dict.fromkeys(IMAGES, CAT) | {"d" * 64: DOG},
    {"cat_1.jpg": IMAGES[0], "cat_2.jpg": IMAGES[1]},
)


def result(control, value, shown="x", kind="x"):
    return {"from_name": control, "to_name": shown, "type": kind, "value": value}


def ranked(slots, shown="x"):
    return result("ranking", {"ranker": {f"slot_{i}": [] for i in range(1, 6)} | slots}, shown, "ranker")


def annotation(**changed):
    return {
        "id": 7,
        "completed_by": 1,
        "was_cancelled": False,
        "ground_truth": False,
        "lead_time": 31.5,
        "created_at": "2026-01-01T10:00:00Z",
        "result": [
            ranked({"slot_1": [IMAGES[1]], "slot_3": [IMAGES[0], IMAGES[2]]}),
            result("overall_1", {"rating": 2}),
            result("overall_2", {"rating": 7}),
            result("fidelity_2", {"rating": 0}),  # taken back
            result("issues_1", {"choices": ["blur"]}),
            result("comment", {"text": ["<b>"]}),  # another tool's control
        ],
    } | changed


def task(*annotations, data=None, **more):
    data = data or labelling_task(CAT, "a cat", IMAGES, "")["data"]
    return {"id": 3, "data": data, "annotations": list(annotations), **more}


def checked(*tasks):
    rankings, ratings, funnel, warnings = checked_tables(export_annotations(list(tasks), "x.json"), KNOWN)
    dropped = funnel.dropped_frame()
    assert funnel.metrics(len(rankings))["rows/in"] == len(rankings) + len(dropped)
    return rankings, ratings, dropped, warnings


def test_a_sound_annotation_comes_through_as_given():
    rankings, ratings, dropped, warnings = checked(task(annotation()))
    assert dropped.empty and not warnings
    (row,) = rankings.to_dict("records")
    assert row["annotator_id"] == "label_studio/1" and not row["is_gold"] and row["seconds"] == 31.5
    assert row["image_ids"] == IMAGES and row["ranks"] == [3, 1, 3]
    first, second = ratings.to_dict("records")
    assert (first["overall"], second["overall"]) == (2, 7) and second["fidelity"] is None
    assert first["issues"] == ["blur"] and first["task_id"] == row["task_id"]


def slots(**names):
    return annotation(result=[ranked(names)])


def told(control, name, *values):
    """Returns annotations with a sound ranking, each with another value of one control."""
    sound = annotation()["result"][0]
    return [annotation(result=[sound, result(control, {name: value})]) for value in values]


BAD = {
    "unknown_category": told("category", "choices", ["cats"], ["arts", "people"], 3),
    "unknown_problem": told("problems", "choices", ["rude"], [["violent"]], [None]),
    "cancelled": [annotation(was_cancelled=True)],
    "unknown_annotator": [annotation(completed_by=one) for one in (None, {}, True)],
    "unknown_image": [
        slots(slot_1=IMAGES, slot_2=["z" * 64]),
        slots(slot_1=[*IMAGES, ["x"]]),
        slots(slot_1=[*IMAGES, "d" * 64]),
        *told("overall_9", "rating", 4),
        *told("overall_" + "9" * 5_000, "rating", 4),
    ],
    "image_in_two_slots": [slots(slot_1=IMAGES, slot_2=[IMAGES[0]])],
    "rank_missing": [
        annotation(result=[]),
        slots(slot_1=IMAGES[:1], slot_2=IMAGES[1:2], _=IMAGES[2:]),
        annotation(result=[result("ranking", {"ranker": "slot_1"})]),
    ],
    "rank_out_of_range": [slots(**{name: IMAGES}) for name in ("slot_6", "slot_0", "rank", "slot_" + "9" * 5_000)],
    "rating_out_of_range": told("overall_1", "rating", 99, -1, 10**400, float("inf")),
    "rating_not_a_number": told("overall_1", "rating", "a", None, True, [4], float("nan")),
    "unknown_issue": told("issues_1", "choices", ["ugly"], [["x"]], "blur "),
    "seconds_out_of_range": [annotation(lead_time=seconds) for seconds in (-1, "x", float("inf"))],
    "malformed_row": ["text", annotation(result="x"), annotation(result=[3]), annotation(result=[{"value": 3}])],
}


@pytest.mark.parametrize("reason", BAD)
def test_every_bad_annotation_has_its_reason_and_the_next_one_is_taken(reason):
    rankings, ratings, dropped, _ = checked(task(*BAD[reason], annotation(completed_by=2)))
    assert dropped["reason"].tolist() == [reason] * len(BAD[reason]), dropped["detail"].tolist()
    assert rankings["annotator_id"].tolist() == ["label_studio/2"] and len(ratings) == 2
    assert dropped["detail"].str.len().max() <= 200


@pytest.mark.parametrize(
    ("reason", "changed"),
    [
        ("unknown_prompt", {"prompt_id": "nobody's"}),
        ("unknown_prompt", {"prompt_id": ["x"]}),
        ("unknown_image", {"image_ids": ["d" * 64, *IMAGES]}),  # of another prompt
        ("unknown_image", {"image_ids": [{"x": 1}]}),
        ("unknown_image", {"image_ids": None}),
        ("one_image_only", {"image_ids": IMAGES[:1]}),
        ("image_in_two_slots", {"image_ids": [*IMAGES, IMAGES[0]]}),
    ],
)
def test_every_bad_task_has_its_reason(reason, changed):
    one = task(
        annotation(result=[ranked({"slot_1": IMAGES[:1]})] if reason == "one_image_only" else annotation()["result"])
    )
    one["data"] = one["data"] | changed
    assert checked(one, task(annotation()))[2]["reason"].tolist() == [reason]


def of_prompt(category, *problems):
    said = {"category": [category], "problems": list(problems)}
    return [result(name, {"choices": flags}, "image_1", "choices") for name, flags in said.items() if flags]


def test_a_prompt_in_which_half_of_the_annotators_see_a_problem_is_left_out():
    def tables(*problems):
        people = [
            annotation(completed_by=number, result=[*annotation()["result"], *of_prompt("animals", *own)])
            for number, own in enumerate(problems)
        ]
        kept, _, dropped, _ = checked(task(*people))
        return prompt_annotations(export_annotations([task(*people)], "x.json"), KNOWN), kept, dropped

    said, kept, dropped = tables([], [], ["violent"])
    assert len(kept) == 3 and dropped.empty
    assert said["category"].tolist() == ["animals"] * 3 and said["problems"].tolist() == [[], [], ["violent"]]
    assert set(said["task_id"]) == set(kept["task_id"]) and set(said["annotator_id"]) == set(kept["annotator_id"])
    said, kept, dropped = tables([], ["unclear", "violent"])
    assert kept.empty and dropped["reason"].tolist() == ["problem_prompt"] * 2
    assert prompts_with_problems(said) == {CAT}
    # Who sees a problem need not rank.
    alone = annotation(result=of_prompt("people", "ambiguous"))
    assert checked(task(alone))[2]["reason"].tolist() == ["problem_prompt"]
    # The later answer counts.
    later = annotation(id=8, created_at="2026-01-02", result=[*annotation()["result"], *of_prompt("people")])
    rankings, _, dropped, _ = checked(task(later, alone))
    assert len(rankings) == 1 and dropped["reason"].tolist() == ["rank_missing"]


def test_drafts_and_rows_that_are_no_tasks_are_counted():
    *_, dropped, _ = checked(task(annotation(), drafts=[{"result": []}, {}]), {"data": {}, "annotations": 3}, 7)
    assert dropped["reason"].tolist() == ["draft", "draft", "malformed_row", "malformed_row"]


def test_of_two_annotations_by_one_person_the_later_counts():
    early = annotation(id=1, created_at="2026-01-01T09:00:00Z", lead_time=1)
    late = annotation(id=2, created_at="2026-01-01T11:00:00Z", lead_time=2)
    reference = annotation(id=3, ground_truth=True)
    for several in ([early, late], [late, early]):
        rankings, ratings, dropped, _ = checked(task(*several, reference))
        assert dropped["reason"].tolist() == ["duplicate_annotation"] and "3/1" in dropped["row_id"][0]
        assert sorted(rankings["seconds"]) == [2, 31.5] and len(ratings) == 2  # the reference has no ratings
        assert rankings.set_index("seconds")["is_gold"].to_dict() == {2: False, 31.5: True}


def test_too_many_in_one_slot_is_a_warning():
    rankings, _, dropped, warnings = checked(task(annotation(result=[ranked({"slot_2": IMAGES})])))
    assert len(rankings) == 1 and dropped.empty and warnings == {"warnings/too_many_in_slot": 1}


def test_addresses_of_people_do_not_reach_the_tables():
    rankings, *_ = checked(task(annotation(completed_by={"email": "ann@example.org"})))
    assert rankings["annotator_id"][0].startswith("label_studio/") and "@" not in rankings["annotator_id"][0]
    by_number, *_ = checked(task(annotation(completed_by={"id": 4, "email": "ann@example.org"})))
    assert by_number["annotator_id"][0] == "label_studio/4"


def test_json_min_and_other_files_are_refused():
    with pytest.raises(UserError, match="not as JSON-MIN"):
        list(export_annotations([{"id": 1, "ranking": {}}], "x.json"))
    for content in (b"[1, 2", b"a,b\n1,2\n", b"\x1f\x8b broken"):
        with pytest.raises(UserError):
            json_rows(content, "x.json")
    assert json_rows(b'{"a": "\\ud800"}\nbroken\n', "x") == [{"a": "?"}, None]


def test_rankings_of_the_papers_form():
    row = {"prompt": "a cat", "generations": ["cat_1.jpg", "cat_2.jpg"], "ranking": [1, 1]}
    bad = [
        ("unknown_image", row | {"generations": ["cat_1.jpg", "cat_9.jpg"]}),
        ("unknown_prompt", row | {"prompt": "a cow"}),
        ("rank_missing", row | {"ranking": [1]}),
        ("rank_out_of_range", row | {"ranking": [1, 2.5]}),
        ("unknown_image", row | {"generations": [["x"], "cat_2.jpg"]}),
        ("unknown_annotator", row | {"annotator": ""}),
        ("malformed_row", {"prompt": "a cat"}),
        ("malformed_row", None),
    ]
    named = row | {"generations": ["cat_1.jpg", IMAGES[1]], "ranking": [2, 1], "annotator": "ann"}
    rows = [named, row, *(one for _, one in bad)]
    rankings, ratings, funnel, _ = checked_tables(ranking_annotations(rows, "r", KNOWN), KNOWN)
    assert rankings["annotator_id"].tolist() == ["ann", ""] and rankings["ranks"].tolist() == [[2, 1], [1, 1]]
    assert ratings.empty
    assert funnel.dropped_frame()["reason"].tolist() == [reason for reason, _ in bad]


def test_votes_are_anonymous_rankings_of_two_with_a_weight():
    row = {"prompt": "a cat", "image_a": "cat_1.jpg", "image_b": "cat_2.jpg"}
    # The second is another voter with the same vote.
    cast = [("cat_2.jpg", 0.5), ("cat_2.jpg", 0.5), ("cat_1.jpg", 0), ("cat_9.jpg", 1)]
    cast += [("cat_1.jpg", "x"), ("cat_1.jpg", -1)]
    votes = [*({"votedFor": name, "userScore": score} for name, score in cast), 3]
    rows = [
        row | {"votes": votes},
        row,
        {**row, "prompt": 3, "votes": []},
        row | {"image_b": "cat_1.jpg", "votes": votes[:1]},
    ]
    rankings, _, funnel, _ = checked_tables(vote_annotations(rows, "v", KNOWN), KNOWN)
    assert rankings["ranks"].tolist() == [[2, 1], [2, 1], [1, 2]] and rankings["weight"].tolist() == [0.5, 0.5, 0]
    assert rankings["annotator_id"].tolist() == [""] * 3 and rankings["task_id"].nunique() == 1
    reasons = ["unknown_image", *["weight_out_of_range"] * 2, *["malformed_row"] * 3, "unknown_image"]
    assert funnel.dropped_frame()["reason"].tolist() == reasons


def real(name):
    return json_rows((REAL / name).read_bytes(), name)


@needs_real_rows
def test_the_real_rankings_give_6399_pairs_and_831_ties():
    rows = real("imagereward_test_rankings.jsonl.gz")
    prompts = {prompt_id(row["prompt"]): row["prompt"] for row in rows}
    images = {name: prompt_id(row["prompt"]) for row in rows for name in row["generations"]}
    known = Known(prompts, images)
    rankings, _, funnel, warnings = checked_tables(ranking_annotations(rows, "r", known), known)
    assert len(rankings) == 466 and len(prompts) == 463 and not warnings and funnel.dropped_frame().empty
    kept = rankings.to_dict("records")
    assert len(pairs_of(kept, dict.fromkeys(prompts, "test"))) == 6_399 and count_ties(kept) == 831


@needs_real_rows
def test_the_real_votes_have_their_ceiling():
    rows = real("rapidata_pairs_with_images.jsonl.gz")
    prompts = {prompt_id(row["prompt"]): row["prompt"] for row in rows}
    images = {row[side]: prompt_id(row["prompt"]) for row in rows for side in ("image_a", "image_b")}
    known = Known(prompts, images)
    rankings, ratings, funnel, _ = checked_tables(vote_annotations(rows, "v", known), known)
    assert len(rankings) == 646 and len(images) == 20 and funnel.dropped_frame().empty
    measures = vote_measures(rankings.to_dict("records"))
    assert measures["agreement_of_two"] == pytest.approx(0.580, abs=0.0005)
    assert measures["ceiling"] == pytest.approx(0.688, abs=0.0005)
    assert agreement_measures(rankings, ratings)["alpha_rank"] == pytest.approx(0.150, abs=0.002)


def run(tmp_path, params, content=None):
    prompts = ["a blue square", "a red circle", "a red circle", "a red circle"] * 2
    rows = [picture_row(GRADIENT + number, prompt, generator=f"g{number % 2}") for number, prompt in enumerate(prompts)]
    write_shards(rows, tmp_path / "pool", 100)
    write_prompts(tmp_path / "prompts", {"a red circle": "train", "a blue square": "test"})
    file = None
    if content is not None:
        (tmp_path / "export.json").write_bytes(content)
        file = {"path": str(tmp_path / "export.json"), "sha256": hashlib.sha256(content).hexdigest()}
    round_1 = {"foreign": None, "annotations": file, "also": "round_1"}
    metrics = run_stage(
        "annotate@round_1", tmp_path, {"seed": 1, "annotate": params, "ranking_rounds": {"round_1": round_1}}
    )
    rankings = read_table(tmp_path / "out" / "rankings.parquet", RANKING)
    ratings = read_table(tmp_path / "out" / "ratings.parquet", RATING)
    return rankings, ratings, read_table(tmp_path / "dropped", DROPPED), metrics


def test_the_stage_with_a_panel(tmp_path):
    params = recipe("t2i-shapes")["annotate"] | {"images_per_task": 4, "gold_tasks": 1}
    rankings, ratings, dropped, metrics = run(tmp_path, params)
    assert metrics["tasks/gold"] == 1 and metrics["annotators/all"] == 12 and dropped.empty
    assert len(rankings) == metrics["rows/kept"] and len(ratings) == metrics["ratings/all"]
    assert len(json.loads((tmp_path / "out" / "panel.json").read_text())["careless"]) == 2
    first = [path.read_bytes() for path in sorted((tmp_path / "out").iterdir())]
    run(tmp_path, params)
    assert [path.read_bytes() for path in sorted((tmp_path / "out").iterdir())] == first


def test_the_stage_with_a_file(tmp_path):
    with pytest.raises(UserError, match="has no usable annotation"):
        run(tmp_path, {"kind": "rankings"}, b'[{"prompt": "a red circle"}]')
    images = read_image_rows(tmp_path / "pool")
    pool_ids = images.loc[images["prompt"] == "a red circle", "image_id"].tolist()
    row = {"prompt": "a red circle", "generations": pool_ids[:3], "ranking": [1, 2, 2], "annotator": "ann"}
    content = gzip.compress(json.dumps([row, row | {"ranking": [9, 1, 1], "annotator": "ben"}]).encode())
    rankings, _, dropped, metrics = run(tmp_path, {"kind": "rankings"}, content)
    assert rankings["ranks"].tolist()[0].tolist() == [1, 2, 2] and metrics["dropped/rank_out_of_range"] == 1
    assert dropped["row_id"].tolist() == ["export.json:1"]
    shared = [{"prompt": "a red circle", "generations": ["generated", pool_ids[0]], "ranking": [1, 2]}]
    with pytest.raises(UserError, match="dropped/unknown_image"):  # a source of several images names no image
        run(tmp_path, {"kind": "rankings"}, json.dumps(shared).encode())
    with pytest.raises(UserError, match="annotations is null"):
        run(tmp_path, {"kind": "votes"})
    assert not (tmp_path / "out" / "prompts.parquet").exists()


def test_the_stage_with_what_people_say_of_prompts(tmp_path):
    params = {"kind": "label_studio"}
    with pytest.raises(UserError, match="has no usable annotation"):
        run(tmp_path, params, b"[]")
    tasks = []
    for prompt, images in read_image_rows(tmp_path / "pool").groupby("prompt")["image_id"]:
        ids = list(dict.fromkeys(images))
        answers = [ranked({"slot_1": ids[:1], "slot_2": ids[1:]}), *of_prompt("illustrations")]
        answers += of_prompt("", "unclear", "violent")[1:] if prompt == "a blue square" else []
        tasks.append(task(annotation(result=answers), data=labelling_task(prompt_id(prompt), prompt, ids, "")["data"]))
    rankings, _, dropped, metrics = run(tmp_path, params, json.dumps(tasks).encode())
    assert rankings["prompt_id"].tolist() == [prompt_id("a red circle")]
    assert dropped["reason"].tolist() == ["problem_prompt"] and "'a blue square'" in dropped["detail"][0]
    said = read_table(tmp_path / "out" / "prompts.parquet", PROMPT_ANNOTATION)
    assert said["category"].tolist() == ["illustrations"] * 2 and sorted(map(len, said["problems"])) == [0, 2]
    assert metrics["prompts/with_problems"] == 1
    counted = {name: value for name, value in metrics.items() if name.startswith("prompt_annotations/")}
    expected = {"illustrations": 2, "unclear": 1, "violent": 1}
    assert counted == {f"prompt_annotations/{name}": count for name, count in expected.items()}


HOSTILE = """<img src=x onerror="alert(1)"> </script><script>alert(2)</script> {{7*7}} ' " & $image_1"""
PROMPTS = ["a cat", HOSTILE, "a dog"]
COUNTS = [4, 9, 1]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Exports a pool by the command; returns the folder, the pool's rows, what is known of them, and the tasks."""
    folder, secret, rows = tmp_path_factory.mktemp("exported"), PngInfo(), []
    secret.add_text("parameters", "a secret path")
    for prompt in (one for one, count in zip(PROMPTS, COUNTS, strict=True) for _ in range(count)):
        pixels = GRADIENT + numpy.uint8(len(rows) * 3)
        png = saved(Image.fromarray(pixels), pnginfo=secret)
        rows.append(picture_row(pixels, prompt, source=f"{len(rows)}.png") | {"png": png})
    write_shards(rows, folder / "pool", 5)
    write_prompts(folder / "prompts", dict.fromkeys(PROMPTS, "train"))
    known = Known({prompt_id(p): p for p in PROMPTS}, {row["image_id"]: row["prompt_id"] for row in rows})
    told = command("export", "round_1", "--images", 9, "--address", "/x/", out=folder / "out", pool=folder / "pool")
    assert told["tasks"] == {"4_images": 1, "9_images": 1}  # one image cannot be ranked
    return folder, rows, known, tasks_in(folder / "out")


def command(*words, **options):
    """Returns what `retrace annotations` prints, as JSON if it succeeds."""
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    done = CliRunner().invoke(app, ["annotations", *map(str, (*words, *flags))])
    assert done.exit_code in (0, 2), done.output
    return done.output if done.exit_code else json.loads(done.stdout)


def tasks_in(folder):
    return [task for path in sorted(folder.glob("*/tasks.json")) for task in json.loads(path.read_text())]


@pytest.mark.parametrize("count", [2, 4, 9])
def test_the_configuration_asks_for_all_of_every_image_once(count):
    root = ElementTree.fromstring(labelling_configuration(count))
    assert len(root.findall(".//Image")) == count and len(root.findall(".//Rating")) == 3 * count
    assert {one.get("maxRating") for one in root.iter("Rating")} == {"7"}
    assert [one.get("name") for one in root.iter("Bucket")] == [f"slot_{i}" for i in range(1, 6)]
    names = [one.get("name") for tag in ("Image", "Rating", "Choices", "List", "Ranker") for one in root.iter(tag)]
    assert len(set(names)) == len(names)
    assert {one.get("toName") for one in root.iter("Rating")} == {f"image_{i}" for i in range(1, count + 1)}
    asked = {one.get("name"): [choice.get("value") for choice in one] for one in root.iter("Choices")}
    of_prompt = {"category": list(PROMPT_CATEGORIES), "problems": list(PROMPT_PROBLEMS)}
    assert asked == of_prompt | {f"issues_{number}": list(ISSUES) for number in range(1, count + 1)}
    assert list(asked)[:2] == ["category", "problems"], "before the images"
    task = labelling_task("p", "a cat", ["x"] * count, "")["data"]
    asked = {value[1:] for one in root.iter() if (value := one.get("value", "")).startswith("$")}
    assert asked <= set(task) and len(task["items"]) == count


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_no_hostile_text_becomes_markup():
    task = labelling_task("p", HOSTILE, ["a" * 64], 'x" onerror="alert(1)')["data"]
    parser = Tags()
    parser.feed("".join(item["html"] for item in task["items"]))
    assert [(tag, sorted(given)) for tag, given in parser.found] == [("img", ["alt", "src"])]
    assert parser.found[0][1]["src"] == f'x" onerror="alert(1){"a" * 64}.png'
    assert task["prompt"] == HOSTILE  # `$prompt` of a Header is shown as text


def test_the_folder_has_a_project_for_each_number_of_images_and_bare_pictures(exported):
    folder, rows, _, _ = exported
    (task,) = json.loads((folder / "out" / "9_images" / "tasks.json").read_text())
    assert task["data"]["prompt"] == HOSTILE and len(set(task["data"]["image_ids"])) == 9
    assert task["data"]["image_1"] == f"/x/{task['data']['image_ids'][0]}.png"
    pictures = sorted((folder / "out" / "images").iterdir())
    assert len(pictures) == 13 and all(b"secret" in row["png"] for row in rows)
    for path in pictures:
        assert b"secret" not in path.read_bytes() and b"tEXt" not in path.read_bytes()
        assert image_id(numpy.asarray(Image.open(path))) == path.stem
    assert "exists" in command("export", "round_1", out=folder / "out", pool=folder / "pool")


def label_studio_export(tasks):
    """Returns the export of Label Studio 1.23.2 for such tasks, with several annotators' answers inserted."""
    exported = []
    for number, task in enumerate(tasks, start=1):
        images = task["data"]["image_ids"]
        answers = [ranked({f"slot_{slot}": images[slot - 1 :: 5] for slot in range(1, 6)}, "items")]
        for index in range(1, len(images)):  # the last one is not rated
            for aspect, points in (("overall", 8 - index if index < 7 else 1), ("fidelity", 4)):
                answers.append(result(f"{aspect}_{index}", {"rating": points}, f"image_{index}", "rating"))
        answers.append(result("issues_2", {"choices": ["blur", "violent"]}, "image_2", "choices"))
        answers += of_prompt("arts")
        address = {"email": "b@example.org"}
        said = {"was_cancelled": False, "ground_truth": False, "result": answers}
        annotations = [
            {"id": 1, "completed_by": 1, "lead_time": 12.5, "created_at": "2026-01-01T00:00:00Z", **said},
            {"id": 2, "completed_by": address, "lead_time": None, "created_at": "2026-01-02", **said},
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


def test_an_export_becomes_tables_and_the_tables_become_it_again(exported, tmp_path):
    folder, _, known, tasks = exported
    given = label_studio_export(tasks)
    rankings, ratings = tables(given, known)
    assert len(rankings) == 6 and len(ratings) == 2 * (3 + 8)
    said = prompt_annotations(export_annotations(given, "x"), known)
    for name, rows, schema in (
        ("rankings", rankings, RANKING),
        ("ratings", ratings, RATING),
        ("prompts", said, PROMPT_ANNOTATION),
    ):
        write_table(rows, tmp_path / "annotations" / f"{name}.parquet", schema)
    places = {"pool": folder / "pool", "annotated": tmp_path / "annotations"}
    told = command("export", "round_1", "--address", "/x/", out=tmp_path / "again", **places)
    assert told["tasks"] == {"4_images": 1, "9_images": 1}
    back = tasks_in(tmp_path / "again")
    assert [one["data"] for one in back] == [one["data"] for one in tasks]
    for one, other in zip(back, given, strict=True):
        for mine, theirs in zip(one["annotations"], other["annotations"], strict=True):
            assert mine["lead_time"] == theirs["lead_time"] and mine["ground_truth"] == theirs["ground_truth"]
            named = {item["from_name"]: item for item in theirs["result"]}
            expected = named if not theirs["ground_truth"] else {"ranking": named["ranking"]}
            assert {item["from_name"]: item for item in mine["result"]} == expected
    for name, rows, schema in zip(("rankings", "ratings"), tables(back, known), (RANKING, RATING), strict=True):
        write_table(rows, tmp_path / "again.parquet", schema)
        first = read_table(tmp_path / "annotations" / f"{name}.parquet", schema)
        pandas.testing.assert_frame_equal(read_table(tmp_path / "again.parquet", schema), first)
    write_table(rankings.assign(source="panel"), tmp_path / "annotations" / "rankings.parquet", RANKING)
    assert "panel" in command("export", "round_1", out=tmp_path / "panel", **places), "not into Label Studio"


def test_an_import_leaves_addresses_of_people_out_and_counts_what_it_drops(exported, tmp_path):
    folder, _, known, tasks = exported
    given = label_studio_export(tasks)
    for points in (99, float("nan")):
        answers = [given[0]["annotations"][0]["result"][0], result("overall_1", {"rating": points})]
        given[0]["annotations"].append({"completed_by": 5, "result": answers})
    (tmp_path / "export.json").write_text(json.dumps([*given, 3]))
    places = {"pool": folder / "pool", "prompts": folder / "prompts", "out": tmp_path / "round_1.json"}
    told = command("import", "round_1", tmp_path / "export.json", **places)
    assert told["counts"]["rows/in"] == 9 and told["counts"]["rows/kept"] == 6
    reasons = ("rating_out_of_range", "rating_not_a_number", "malformed_row")
    assert [told["counts"][f"dropped/{reason}"] for reason in reasons] == [1, 1, 1]
    text = (tmp_path / "round_1.json").read_text()
    assert "example.org" not in text and "/srv" not in text
    assert told["ranking_rounds.round_1.annotations"]["path"] == str(tmp_path / "round_1.json")
    slim = json_rows(text.encode(), "round_1.json")
    assert slimmed(slim) == slim  # nothing more to remove
    whole, again = (checked_tables(export_annotations(rows, "x"), known) for rows in (given, slim))
    pandas.testing.assert_frame_equal(whole[0], again[0])
    pandas.testing.assert_frame_equal(whole[1], again[1])
    assert "does not exist" in command("import", "round_1", "none.json", **places)
