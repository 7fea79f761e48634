"""ReFL: rewards rise by a gradient step, the pre-training loss limits it, and another score chooses the weights."""

import json

import numpy
import pytest
import torch
from safetensors.torch import load_file

from stages.engines.trainers.one_rank import OneRank
from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import FEEDBACK_IMAGE, PAIR, PROMPT, prompt_id, read_table, write_table
from stages.images.algorithms.shape_world import render, scene_of
from stages.images.engines.generators.generator import images_of, load_generator, new_generator, save_generator
from stages.images.engines.generators.params import GeneratorSizes
from stages.images.engines.image_scorers.scorer import save_scorer
from stages.images.engines.pictures.shards import pixels_of, write_shards
from stages.images.refl.feedback import RewardGradient, in_turn
from stages.images.refl.generated_pictures import GeneratedPictures
from stages.images.refl.measurement import diversity, gains, saturation, shown_for, without
from stages.images.refl.stage import ABOUT, ReflParams, ReflRound
from stages.images.refl.training import chosen_update, decay_of
from stages.images.refl_control.stage import ABOUT as CONTROL_ABOUT
from tests.fakes.one_stage import curve_of, pair_row, picture_row, run_stage, write_prompts
from tests.fakes.picture_recipes import mini_shapes
from tests.fakes.ranked_pictures import tiny_scorer

PROMPTS = {
    "train": ["a red circle", "a blue square", "two green triangles", "a yellow circle"],
    "validation": ["a green circle", "a red square"],
    "test": ["a blue circle", "a yellow square", "a red triangle"],
}
MINI = mini_shapes()
REFL = MINI["refl"] | {
    "batch_images": 6,
    "micro_batch_images": 4,
    "pretraining": MINI["refl"]["pretraining"] | {"weight": 1.0, "batch_images": 6},
    "optimizer": {"kind": "adamw", "learning_rate": 0.002, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0},
    "warmup_updates": 1,
    "ema_decay": 0.5,
    "checkpoint_every_updates": 2,
    "measurement": MINI["refl"]["measurement"] | {"guidance": 1.0, "draw_images": 4},
}
ROUND = {
    "start_from": "base",
    "reward_model": "round_1",
    "held_out": {"scorer": "base", "variant": "clip"},
    "updates": 6,
    "reward_weight": 1.0,
    "selection": "held_out",
}
LAST = {**ROUND, "selection": "last"}
CONTROL = {**LAST, "reward_weight": 0}


def a_generator():
    return new_generator(GeneratorSizes.model_validate(MINI["t2i_base"]["sizes"]), PROMPTS["train"], seed=0)


def a_scorer(seed):
    head = {"reward_head": {"widths": [8], "dropouts": []}, "reward_std": 0.05, "text_dropout": 0.0}
    words = [prompt for prompts in PROMPTS.values() for prompt in prompts]
    return tiny_scorer(seed, words, image_size=24, patch_size=8, **head)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Makes an untrained generator, two scorers, prompts, and pairs with renders of the wrong scene."""
    folder = tmp_path_factory.mktemp("refl")
    save_generator(a_generator(), folder / "generator")
    save_scorer(a_scorer(1), folder / "round_1")
    save_scorer(a_scorer(2), folder / "held_out")
    write_prompts(folder / "prompts", {prompt: split for split, prompts in PROMPTS.items() for prompt in prompts})
    pictures, pairs = [], []
    for number, prompt in enumerate(PROMPTS["train"]):
        shown = (prompt, PROMPTS["train"][number - 1])
        two = [picture_row(render(scene_of(one), number), prompt, seed=number) for one in shown]
        pictures += two
        pairs.append(pair_row(prompt_id(prompt), two[0]["image_id"], two[1]["image_id"], "train"))
    write_shards(pictures, folder / "pool", 4)
    write_table(pairs, folder / "pairs" / "pairs.parquet", PAIR)
    return folder


def run(project, out, changes=None, name="refl_1", places=None, **rounds):
    """Runs a round with changes to section refl and to rounds; returns its metrics."""
    sections = {"seed": 3, "trainer": MINI["trainer"], "refl": {**REFL, **(changes or {})}}
    sections["refl_rounds"] = {"refl_1": ROUND, "control_1": CONTROL, **rounds}
    inputs = {one: project / one for one in ("generator", "prompts", "held_out", "pairs", "pool")}
    inputs |= {"scorer": project / "round_1", **(places or {})}
    return run_stage(f"refl@{name}", out, sections, **inputs)


@pytest.fixture(scope="module")
def climbed(project, tmp_path_factory):
    """Runs the round with its last update and no average, so that the effect of the loss is visible."""
    out = tmp_path_factory.mktemp("climbed")
    return out, run(project, out, {"ema_decay": 0.0}, refl_1=LAST)


def test_the_reward_rises_on_prompts_and_noise_that_were_not_trained_on(climbed):
    out, metrics = climbed
    curve = curve_of(out)
    assert metrics["refl/reward/gain"] > 0
    assert metrics["refl/reward/after"] - metrics["refl/reward/before"] == pytest.approx(metrics["refl/reward/gain"])
    assert curve[-1]["validation/reward"] > curve[0]["validation/reward"]
    assert metrics["refl/selected_update"] == metrics["refl/updates"] == 6
    assert metrics["refl/pairs"] == 6 and metrics["refl/prompts"] == 3


def test_each_part_has_a_gradient_in_every_update(climbed):
    rows = curve_of(climbed[0])[1:]
    assert len(rows) == 6
    for row in rows:
        assert row["optim/gradient_norm_pretraining"] > 1e-3
        assert row["optim/gradient_norm_feedback"] > 1e-3
        sides = row["optim/gradient_norm_pretraining"], row["optim/gradient_norm_feedback"]
        assert abs(sides[0] - sides[1]) <= row["optim/gradient_norm"] <= sum(sides) * 1.0001
        assert row["loss/total"] == pytest.approx(row["loss/feedback"] + row["loss/pretraining"], rel=1e-4)


def test_the_curve_shows_what_hacking_looks_like_beside_the_reward(climbed):
    first, *_, last = curve_of(climbed[0])
    shown = {"reward", "held_out", "truth", "alignment", "fidelity", "saturation", "diversity"}
    shown |= {"distance_to_start", "reward_without_held_out", "reward_without_truth"}
    assert {name.removeprefix("validation/") for name in first} - {"step"} == shown
    assert first["validation/distance_to_start"] == 0 < last["validation/distance_to_start"]


def test_pictures_are_kept_by_the_rule_and_from_one_noise(climbed, project):
    frame = read_table(climbed[0] / "pictures", FEEDBACK_IMAGE)
    assert sorted(frame["shown_for"]) == ["", "", "", "gain", "loss", "middle"]
    assert (frame["png_before"].notna() == (frame["shown_for"] != "")).all()
    row = frame[frame["shown_for"] == "gain"].iloc[0]
    for folder, png in ((project / "generator", row.png_before), (climbed[0] / "out", row.png_after)):
        drawn = load_generator(folder, torch.device("cpu")).draw([row.prompt], [int(row.seed)], 4, 1.0)[0]
        assert numpy.abs(drawn.astype(int) - pixels_of(png)).max() <= 1


def test_only_the_unet_learns(climbed, project):
    for part, is_equal in (("unet/diffusion_pytorch_model", False), ("text_encoder/model", True)):
        before, after = (
            load_file(folder / f"{part}.safetensors") for folder in (project / "generator", climbed[0] / "out")
        )
        same = [torch.equal(before[name], after[name]) for name in before]
        assert all(same) if is_equal else not any(same[:3])


def test_a_control_trains_as_long_without_a_reward(project, tmp_path):
    run(project, tmp_path, name="control_1")
    rows = curve_of(tmp_path)[1:]
    assert len(rows) == 6
    assert all("optim/gradient_norm_feedback" not in row and row["loss/pretraining"] > 0 for row in rows)


@pytest.mark.parametrize(
    "feedback",
    [{"kind": "draft", "gradient_steps": 2, "bound": None}, {"kind": "dpo", "beta": 500.0}],
    ids=["draft", "dpo"],
)
def test_the_other_kinds_of_feedback_learn(project, tmp_path, feedback):
    longer = {**LAST, "updates": 12, "reward_weight": 5.0}
    metrics = run(project, tmp_path, {"feedback": feedback, "ema_decay": 0.0}, refl_1=longer)
    rows = curve_of(tmp_path)[1:]
    assert rows[-1]["optim/gradient_norm_feedback"] > 0
    if feedback["kind"] == "dpo":
        assert rows[0]["loss/feedback"] == pytest.approx(numpy.log(2))
        assert min(row["loss/feedback"] for row in rows[6:]) < 0.67
        assert rows[-1]["preference/accuracy_train"] > 0.5
        assert metrics["rows/kept"] == 4 and metrics["dropped/image_missing"] == 0
    else:
        assert metrics["refl/reward/gain"] > 0


DRAWN = {"prompts": 4, "pictures_per_prompt": 2}
FILTERING = {"kind": "dataset_filtering", **DRAWN, "top_share": 0.25}
WEIGHTED = {"kind": "reward_weighted", **DRAWN}
RAFT = {"kind": "raft", "prompts": 3, "pictures_per_prompt": 3, "updates_per_round": 2}


@pytest.mark.parametrize("feedback", [FILTERING, WEIGHTED, RAFT], ids=lambda one: one["kind"])
def test_pictures_that_the_reward_chooses_are_learnt(project, tmp_path, feedback):
    run(project, tmp_path, {"feedback": feedback, "ema_decay": 0.0}, refl_1=LAST)
    rows = curve_of(tmp_path)[1:]
    assert all(row["optim/gradient_norm_feedback"] > 0 for row in rows)
    assert rows[-1]["loss/feedback"] < rows[0]["loss/feedback"]
    means = [row["reward/generated"] for row in rows]
    if feedback is RAFT:
        assert means[::2] == means[1::2] and len(set(means)) == 3, "drawn anew every second update"
    else:
        assert len(set(means)) == 1
    if feedback is not WEIGHTED:
        assert all(row["reward/train"] > row["reward/generated"] for row in rows)


@torch.no_grad()
def test_a_round_of_raft_keeps_what_drawing_and_scoring_one_by_one_finds_best():
    params = ReflParams.model_validate(REFL | {"feedback": RAFT})
    one = GeneratedPictures(params, a_generator(), a_scorer(1).eval(), PROMPTS["train"], 3, "base")
    one.prepare(3, one.generator, OneRank())
    # The prompts of round 1 are the next three of the endless sequence.
    prompts = [in_turn(PROMPTS["train"], place, 3, "base", "prompts") for place in (3, 4, 5)]
    for place, prompt in enumerate(prompts):
        seeds = [derive_seed(3, "base", "generated", 1, 3 * place + copy) for copy in range(3)]
        pictures = [one.generator.draw([prompt], [seed], 4, 1.0) for seed in seeds]
        rewards = [float(one.scorer.score(images_of(picture), [prompt])) for picture in pictures]
        best = int(numpy.argmax(rewards))
        assert PROMPTS["train"][one.held["prompts"][place]] == prompt
        assert float(one.held["rewards"][place]) == pytest.approx(rewards[best], abs=0.05)
        assert numpy.abs(one.held["pictures"][place].numpy().astype(int) - pictures[best][0]).max() <= 1
    assert one.held["weights"].tolist() == [1, 1, 1]


def test_the_choice_is_by_the_held_out_score_and_never_by_the_reward():
    curve = [
        {"step": 0, "validation/held_out": 0.5, "validation/reward": 0.0},
        {"step": 1},
        {"step": 2, "validation/held_out": 0.7, "validation/reward": 1.0},
        {"step": 4, "validation/held_out": 0.2, "validation/reward": 9.0},
    ]
    assert chosen_update(curve, "held_out") == 2
    assert chosen_update(curve[:1] + curve[3:], "held_out") == 0, "the start is a choice too"
    assert chosen_update(curve, "last") == 4


def test_hacking_is_called_hacking():
    prompts = [f"prompt {number}" for number in range(20)]
    stream = numpy.random.default_rng(0)
    start = {name: stream.normal(size=20) for name in ("reward", "held_out", "truth")}

    def verdict(reward, held_out, truth):
        moved = {"reward": reward, "held_out": held_out, "truth": truth}
        after = {name: start[name] + change + 0.1 * stream.normal(size=20) for name, change in moved.items()}
        return tuple(without(gains(start, after, prompts)).values())

    assert verdict(reward=1.0, held_out=-0.5, truth=-0.5) == (1.0, 1.0)
    assert verdict(reward=1.0, held_out=0.5, truth=-0.5) == (0.0, 1.0)
    assert verdict(reward=1.0, held_out=0.5, truth=0.1) == (0.0, 0.0)
    assert verdict(reward=-1.0, held_out=-0.5, truth=-0.5) == (0.0, 0.0), "no reward was gained"


def test_measures_by_hand():
    grey, red = numpy.full((2, 2, 3), 100, numpy.uint8), numpy.zeros((2, 2, 3), numpy.uint8)
    red[..., 0] = 200
    assert saturation(numpy.stack([grey, red, numpy.zeros_like(red)])).tolist() == [0.0, 1.0, 0.0]
    # of "a" two equal pictures; of "b" black and white, 1 apart; of "c" one, which says nothing
    pictures = numpy.stack([grey, grey, 0 * grey, 0 * grey + 255, red])
    assert diversity(pictures, ["a", "a", "b", "b", "c"]) == pytest.approx(0.5)
    # 7 pairs, a third of 3 each: ranks 1, 4 and 7
    differences = numpy.array([0.1, 0.9, -0.5, 0.3, 0.0, 0.2, -0.1])
    assert shown_for(differences, 3) == ["middle", "gain", "loss", "", "", "", ""]
    assert shown_for(differences, 2) == [""] * 7


def test_a_split_without_prompts_and_a_missing_image_are_told(project, tmp_path):
    dpo = {"feedback": {"kind": "dpo", "beta": 1.0}}
    frame = read_table(project / "prompts", PROMPT)
    write_table(frame[frame["split"] != "test"], tmp_path / "few", PROMPT)
    with pytest.raises(UserError, match="no test prompts"):
        run(project, tmp_path, dpo, places={"prompts": tmp_path / "few"})
    pairs = read_table(project / "pairs" / "pairs.parquet", PAIR).assign(worse_image_id="f" * 64)
    write_table(pairs, tmp_path / "pairs" / "pairs.parquet", PAIR)
    with pytest.raises(UserError, match="none of the 4 training pairs"):
        run(project, tmp_path, dpo, places={"pairs": tmp_path / "pairs"})


def test_rounds_that_prove_nothing_are_refused():
    def told(changes, control, **feedback):
        rounds = {"refl_1": ROUND | changes, "control_1": CONTROL | control}
        sections = {"refl_rounds": {name: ReflRound.model_validate(one) for name, one in rounds.items()}}
        sections["refl"] = ReflParams.model_validate(REFL | feedback)
        sections["refl_controls"] = {"refl_1": "control_1"}
        return [*ABOUT.contradictions(sections), *CONTROL_ABOUT.contradictions(sections)]

    assert told({}, {}) == []
    (line,) = told({"held_out": {"scorer": "round_1", "variant": "reward"}}, {})
    assert "the reward that the round climbs" in line
    for changes, control, words in (
        ({}, {"reward_weight": 0.1}, "set reward_weight 0"),
        ({}, {"selection": "held_out"}, "selection last"),
        ({"updates": 7}, {}, "updates 7"),
        ({}, {"start_from": "refl_0"}, "start_from base"),
    ):
        (line,) = told(changes, control)
        assert words in line
    (line,) = told({}, {}, feedback={**RAFT, "updates_per_round": 6})
    assert "refl_rounds.refl_1.updates 6 is a single round of RAFT" in line


def test_a_round_is_compared_with_its_control_from_the_same_noise(climbed, tmp_path):
    pictures = read_table(climbed[0] / "pictures", FEEDBACK_IMAGE)
    control = pictures.assign(truth_after=pictures["truth_after"] - 0.25).iloc[::-1]
    write_table(control, tmp_path / "control", FEEDBACK_IMAGE)
    stage = "refl_control@refl_1", tmp_path, {"refl_controls": {"refl_1": "control_1"}}
    metrics = run_stage(*stage, pictures=climbed[0] / "pictures")
    for end in ("mean", "low", "high"):
        assert metrics[f"gain_over_control/truth/{end}"] == pytest.approx(0.25)
        assert metrics[f"gain_over_control/reward/{end}"] == 0
    assert metrics["rows/pairs"] == 6
    assert json.loads((tmp_path / "headline").read_text())["score"] == pytest.approx(0.25)
    write_table(control.assign(seed=control["seed"] + 1), tmp_path / "control", FEEDBACK_IMAGE)
    with pytest.raises(UserError, match="0 are from the same noise"):
        run_stage(*stage, pictures=climbed[0] / "pictures")


def test_a_window_outside_of_the_draw_and_a_pretraining_weight_of_zero_are_refused():
    for change, told in (
        ({"feedback": {"kind": "refl", "window": [2, 4], "bound": 2.0}}, "must be in 0..3"),
        ({"feedback": {"kind": "draft", "gradient_steps": 5, "bound": None}}, "at most sampling_steps"),
        ({"feedback": {**FILTERING, "top_share": 1.0}}, "less than 1"),
        ({"feedback": {**RAFT, "pictures_per_prompt": 1}}, "greater than or equal to 2"),
        ({"pretraining": {**REFL["pretraining"], "weight": 0.0}}, "greater than 0"),
    ):
        with pytest.raises(ValueError, match=told):
            ReflParams.model_validate({**REFL, **change})


def test_each_micro_batch_has_a_gradient_position_of_its_own():
    window = {"feedback": {"kind": "refl", "window": [30, 39], "bound": 2.0}, "sampling_steps": 40}
    params = ReflParams.model_validate(REFL | window)
    feedback = RewardGradient(params, a_generator(), None, PROMPTS["train"], 0, "refl")
    parts = [0, 1], [2, 3], [4, 5]
    positions = {update: [feedback.batch(update, part).position for part in parts] for update in range(20)}
    assert all(30 <= one <= 39 for of_update in positions.values() for one in of_update)
    assert sum(len(set(of_update)) > 1 for of_update in positions.values()) > 15
    assert positions[3] == [feedback.batch(3, part).position for part in ([0], [2], [4])], "not a matter of the size"


def test_the_average_follows_as_diffusers_average_does():
    from diffusers.training_utils import EMAModel

    params = ReflParams.model_validate(REFL | {"ema_decay": 0.9999, "ema_ramp": True})
    theirs = EMAModel([torch.nn.Parameter(torch.zeros(1))], decay=0.9999)
    # Its counter is 1 in the first update.
    assert [decay_of(params, update) for update in range(100)] == [theirs.get_decay(step) for step in range(1, 101)]
    assert decay_of(params, 99) == pytest.approx(0.917, abs=1e-3)
