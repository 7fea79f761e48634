"""What the loop does not go with is refused with the reason and what to change; what is sound loads."""

from __future__ import annotations

import re

import pytest
from pydantic import TypeAdapter

from pipelines.graph.recipes import read_recipe
from pipelines.graph.schema import check_values
from stages.engines.samplers.params import SamplerParams
from stages.engines.trainers.params import TrainerParams
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.rl_round.params import RlParams, loop_contradictions
from tests.fakes.taught_policy import PARAMS
from tests.stages.rl_round.params.test_rl import EXACT, MODEL, NONE, TRM, WEIGHTS

LOOP = {
    "kind": "asynchronous",
    "window": 2,
    "replica_share": 1.0,
    "takes_groups": "when_empty",
    "report_seconds": 0.25,
    "repack": {"kind": "none"},
    "relay": {"keep": 3, "chunk_mib": 64},
    "stalled_seconds": 5.0,
    "trainer_ranks": 1,
}
REPLICAS = {"kind": "ray", "count": 2}
REPLAY = {"kind": "replay", "schedule": "data/schedules/rl_1"}
RECOMPUTE = {"proximal": "recompute", "rollout_correction": WEIGHTS}
STALE = {"study": {"mismatch": {"kind": "stale_weights", "versions": 1}}}
SELECTION = {"kind": "pass_rate", "samples": 4, "min": 0.25, "max": 0.75}


def describe_of(**changes):
    rl = RlParams.model_validate({**PARAMS["rl"], "loop": LOOP, **changes})
    sampler = TypeAdapter(SamplerParams).validate_python({**PARAMS["sampler"], "replicas": REPLICAS})
    trainer = TypeAdapter(TrainerParams).validate_python(PARAMS["trainer"])
    return loop_contradictions(rl, sampler, trainer)


def looped(**changes):
    return {"loop": {**LOOP, **changes}}


@pytest.mark.parametrize(
    "changes",
    [
        RECOMPUTE,
        {"proximal": "recompute", "rollout_correction": TRM},
        {"proximal": "rollout", "rollout_correction": NONE},
        {"proximal": "recompute", "rollout_correction": NONE, **looped(window=0)},
        {**RECOMPUTE, **looped(window=None, relay={"keep": 1, "chunk_mib": 1})},
        {"proximal": "rollout", "rollout_correction": WEIGHTS, "policy_loss": {"kind": "reinforce"}},
        {"proximal": "rollout", "policy_loss": {"kind": "reinforce"}, "advantage": {"kind": "reward"}},
        {"loop": REPLAY, "proximal": "recompute", "rollout_correction": NONE},
        {"loop": REPLAY, "verifier": MODEL},
        {"loop": REPLAY, **RECOMPUTE, **STALE},
    ],
)
def test_what_is_sound_is_not_refused(changes):
    assert describe_of(**changes) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"proximal": "recompute", "rollout_correction": NONE}, r"up to 2 versions old.*marin#8955.*loop\.window 0"),
        ({"proximal": "recompute", "rollout_correction": NONE, **looped(window=None)}, "any number of versions old"),
        ({"proximal": "rollout", "policy_loss": {"kind": "reinforce"}}, "reinforce has no ratio"),
        ({**RECOMPUTE, **STALE}, "study.mismatch.kind stale_weights.*leave rl.study.mismatch out"),
        (EXACT, "neither sent nor recorded, so rl.loop.kind asynchronous.*divergence sampled"),
        ({**EXACT, "loop": REPLAY}, "so rl.loop.kind replay has none"),
        ({**RECOMPUTE, "verifier": MODEL}, "set rl.verifier.kind rule, or rl.loop.kind synchronous"),
        ({**RECOMPUTE, **looped(window=3)}, "set rl.loop.relay.keep to at least 4, or lower rl.loop.window"),
    ],
)
def test_what_collapses_or_has_no_process_is_refused(changes, told):
    (found,) = describe_of(**changes)
    assert re.search(told, found)


@pytest.fixture(scope="module")
def recipe():
    return read_recipe(PROJECT, "laptop-asynchronous")


def test_the_recipe_is_sound_and_may_select_by_pass_rate(recipe):
    check_values(recipe, "laptop-asynchronous")
    chosen = {name: {**own, "prompt_selection": SELECTION} for name, own in recipe["rl_rounds"].items()}
    assert check_values({**recipe, "rl_rounds": chosen}, "x")["rl"].loop.kind == "asynchronous"


@pytest.mark.parametrize(
    ("section", "changes", "told"),
    [
        ("sampler", {"replicas": None}, r"set sampler\.replicas: \{kind: ray, count: 2\}"),
        ("rl", looped(trainer_ranks=4), "set trainer.kind deepspeed, or rl.loop.trainer_ranks 1"),
        (
            "launch",
            {"command": {"kind": "torchrun"}, "gpus_per_node": 2},
            "starts its ranks itself: set launch.command.kind python",
        ),
    ],
)
def test_processes_that_do_not_fit_are_told_before_a_stage_starts(recipe, section, changes, told):
    with pytest.raises(UserError, match=told):
        check_values({**recipe, section: {**recipe[section], **changes}}, "x")
