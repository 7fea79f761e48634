"""Section `rl`: every choice loads; errors about contradictions, also with the loop, name what to change."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter

from pipelines.graph.recipes import read_recipe
from pipelines.graph.schema import check_values
from stages.engines.samplers.params import SamplerParams, TorchSamplerParams, VllmSamplerParams
from stages.engines.trainers.params import TrainerParams
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.foundations.params import PlainPrompt, validate_section
from stages.rl_round.contradictions import loop_contradictions, round_contradictions, sampler_contradictions
from stages.rl_round.methods import PassRateSelection
from stages.rl_round.params import RlParams, RoundParams
from tests.fakes.rounds import (
    ALL_PASS_RATES,
    ASYNCHRONOUS,
    BONUS,
    CLIP_COV,
    COSINE,
    CRITIC,
    EXACT,
    GAE,
    MODEL,
    NGRAM,
    NONE,
    OTB,
    SAFE_SET,
    TRM,
    WEIGHTS,
    WHOLE,
    settings,
)
from tests.fakes.taught_policy import PARAMS

ICE_POP = {"kind": "ice_pop", "low": 0.5, "high": 5.0}


def load(**changes):
    return validate_section({**PARAMS["rl"], **changes}, "rl", RlParams, Path("params.yaml"))


DPPO = {"kind": "dppo", "divergence": "kl", "limit_low": 0.05, "limit_high": 0.05, "ratio_cap": 20.0}
LIKELIEST = {**TRM, "divergence": "likeliest"}
KEPT = {"kind": "likeliest", "count": 20, "max_gib": 1.0}
LENGTH_NEUTRAL = {"kind": "length_neutral_mask", "token_kl": 1e-4, "token_tv": None, "max_score": 0.05}


@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": {"kind": "leave_one_out"}},
        {"advantage": {"kind": "length_weighted"}},
        {"advantage": OTB},
        {"advantage": {**OTB, "is_importance_weighted": True}, "rollout_correction": WEIGHTS},
        {"advantage": {"kind": "reward"}, "group_size": 1, "dynamic_sampling": NONE},
        {"advantage": GAE, "group_size": 1, "dynamic_sampling": NONE, "proximal": "rollout"},
        {"advantage": {**GAE, "gae_lambda": 1.0}, "study": {"repetition_penalty": NGRAM}},
        {"advantage": {**GAE, "discount": 0.99}, "study": {"repetition_penalty": NGRAM}},
        {"advantage": GAE, "reference_kl": {"kind": "in_reward", "coefficient": 0.01}},
        {"policy_loss": {"kind": "gspo", "clip_low": 0.0003, "clip_high": 0.0004}},
        {"policy_loss": {"kind": "cispo", "clip_low": 1.0, "clip_high": 2.0}},
        {"policy_loss": {"kind": "reinforce"}, "proximal": "rollout", "rollout_correction": WEIGHTS},
        {"policy_loss": DPPO, "proximal": "rollout"},
        {"advantage": {"kind": "pass_at_k", "k": 2}, "advantage_whitening": "tokens"},
        {
            "schedule": {"kind": "cosine", "final_fraction": 0.1},
            "advantage": {"kind": "batch_normalized", "deviation_of": "advantages"},
        },
        {"rollout_correction": {"kind": "bad_response_mask", "max_divergence": 0.1}},
        {"rollout_correction": LENGTH_NEUTRAL},
        {"rollout_correction": TRM, "proximal": "rollout"},
        {"rollout_correction": LIKELIEST, "study": {"rollout_distributions": KEPT}},
        {"rollout_correction": {**TRM, "mean_threshold": None}},
        EXACT,
        {"verifier": MODEL},
        {"verifier": {"kind": "model", "reading": {"kind": "written", "max_tokens": 64}, "teaching": NONE}},
        {**EXACT, "study": {"rollout_distributions": WHOLE, "vocabulary_pruning": SAFE_SET}},
        {"study": {"vocabulary_pruning": SAFE_SET}},
        {"reference_kl": {"kind": "k3", "coefficient": 0.01}},
        {"reference_kl": {"kind": "weighted_k3", "coefficient": 0.01}, "aggregation": "prompt_mean"},
        {"policy_loss": CLIP_COV, "top_entropy_fraction": 0.2, "entropy_bonus": BONUS},
        {"policy_loss": {"kind": "kl_cov", "fraction": 0.002, "coefficient": 1.0}, "proximal": "rollout"},
        {"rollout_correction": {**WEIGHTS, "batch_normalized": True}},
        {"reward": COSINE, "overlong": NONE, "study": {"repetition_penalty": NGRAM, "reward_discount": 0.99}},
        {"weight_sync_check": {"sequences": 2, "max_logprob_gap": None}},
    ],
)
def test_every_choice_loads(changes):
    assert load(**changes).model_dump(include=set(changes), exclude_unset=True) == changes


def test_an_absent_study_is_off():
    """The same holds for each of its absent settings; the value `none` is not allowed."""
    for rl in (load(), load(study={})):
        assert rl.mismatch is rl.vocabulary_pruning is rl.log_threshold is rl.repetition_penalty is None
        assert rl.rollout_distributions is None and not rl.keeps_distributions and rl.reward_discount == 1.0
    for name in ("mismatch", "vocabulary_pruning", "repetition_penalty", "rollout_distributions"):
        with pytest.raises(UserError, match=rf"rl\.study\.{name}"):
            load(study={name: NONE})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"advantage": OTB, "group_size": 1, "dynamic_sampling": NONE}, "group_size to at least 2, or advantage"),
        ({"group_size": 1, "advantage": {"kind": "reward"}}, "or dynamic_sampling.kind none"),
        ({"advantage": OTB, "proximal": "rollout"}, "set proximal: recompute"),
        ({"advantage": {**OTB, "is_importance_weighted": True}}, "or is_importance_weighted false"),
        ({"proximal": "rollout", "rollout_correction": WEIGHTS}, "would count it twice: set proximal: recompute"),
        ({"proximal": "rollout", "rollout_correction": ICE_POP}, "ice_pop would count it twice"),
        ({"proximal": "rollout", "top_entropy_fraction": 0.2}, "recompute, or leave top_entropy_fraction out"),
        (
            {
                "proximal": "rollout",
                "policy_loss": {"kind": "reinforce"},
                "rollout_correction": {**WEIGHTS, "batch_normalized": True},
            },
            "recompute, or leave batch_normalized out",
        ),
        ({"policy_loss": {**CLIP_COV, "covariance_low": 5.0}}, "covariance_low 5.0 must be < covariance_high 5.0"),
        ({"top_entropy_fraction": 1.0}, "less than 1"),
        ({"policy_loss": DPPO}, "collapses around weights that are recomputed: set proximal: rollout"),
        ({"advantage": {"kind": "pass_at_k", "k": 9}}, r"advantage.k 9 is more than group_size \d"),
        ({"advantage": {"kind": "mean_normalized"}}, "wrong: 0.0, unparsed: 0.0"),
        ({**EXACT, "study": {}}, "study.rollout_distributions: {kind: whole, .* or set divergence sampled"),
        ({**EXACT, "rollout_correction": TRM}, "keeps what only an exact divergence or a cut of the sampler reads"),
        ({**EXACT, "rollout_correction": NONE}, "or set top_k to at most the count 20 of kind likeliest"),
        ({"top_p": 0.9, "study": {"rollout_distributions": KEPT}}, "or set top_k to at most the count 20"),
        ({"rollout_correction": LIKELIEST, "study": {"rollout_distributions": WHOLE}}, "{kind: likeliest, count: 20"),
        ({**EXACT, "study": {"rollout_distributions": KEPT}}, "{kind: whole"),
        (
            {"rollout_correction": LIKELIEST, "study": {"rollout_distributions": KEPT, "vocabulary_pruning": SAFE_SET}},
            "set divergence exact or sampled, or leave one of the two out",
        ),
        ({"study": {"rollout_distributions": {**KEPT, "count": 21}}}, "less than or equal to 20"),
        ({"rollout_correction": {**LENGTH_NEUTRAL, "token_kl": 0.0}}, "greater than 0"),
        ({"study": {"rollout_distributions": {"kind": "whole"}}}, r"max_gib: missing"),
        ({"verifier": {**MODEL, "teaching": {"kind": "prayer"}}}, "verifier.model.teaching.*made_pairs"),
        ({"rollout_correction": {**TRM, "max_threshold": None, "mean_threshold": None}}, "both null"),
        ({"rollout_correction": WEIGHTS, "top_p": 0.9}, "normalised over fewer tokens than the trainer's"),
        ({"rollout_correction": WEIGHTS, "top_k": 20}, "so that the trainer renormalises over the sampler's tokens"),
        (
            {"rollout_correction": LIKELIEST, "top_k": 21, "study": {"rollout_distributions": KEPT}},
            "top_k 21 the sampler",
        ),
        ({"study": {"vocabulary_pruning": SAFE_SET}, "top_p": 0.9}, "set top_p 1.0 and top_k 0"),
        ({"study": {"vocabulary_pruning": SAFE_SET}, "top_k": 50}, "set top_p 1.0 and top_k 0"),
        ({"study": {"vocabulary_pruning": {**SAFE_SET, "log_threshold": 1.0}}}, "less than 0"),
        ({"study": {"reward_discount": 0.0}}, r"reward_discount.*must lie in \(0, 1\], not 0"),
        ({"study": {"reward_discount": 1.5}}, r"must lie in \(0, 1\], not 1.5: set 1.0"),
        ({"study": {"repetition_penalty": {**NGRAM, "discount": 1.01}}}, r"discount.*must lie in \(0, 1\]"),
        ({"study": {"repetition_penalty": {**NGRAM, "n": 12}}}, "n 12 must be less than max_response_tokens 12"),
        ({"reward": COSINE}, "set overlong.kind none, or reward.kind by_verdict"),
        ({"policy_loss": {"kind": "gspo", "clip_low": 0.4, "clip_high": 0.3}}, "clip_low 0.4 must be <= clip_high 0.3"),
        ({"advantage": {"kind": "critic"}}, "optimal_token_baseline"),
        ({"advantage": {**GAE, "gae_lambda": 0.9}, "study": {"repetition_penalty": NGRAM}}, "or gae_lambda 1.0"),
        ({"advantage": GAE, "study": {"reward_discount": 0.9}}, "leave it out and set advantage.discount"),
        ({"reference_kl": {"kind": "in_reward", "coefficient": 0.01}}, "kind k2, or advantage.kind gae"),
        ({"advantage": {**GAE, "critic": {**CRITIC, "value_clip": 0}}}, "value_clip.*greater than 0"),
    ],
)
def test_contradictions_are_refused_with_what_to_change(changes, told):
    with pytest.raises(UserError, match=told):
        load(**changes)


@pytest.mark.parametrize("bounds", [(0.3, 0.4), (0.8, 0.2)])
def test_a_selection_that_nothing_can_pass_is_refused(bounds):
    with pytest.raises(ValueError, match="no pass rate of 4 samples"):
        PassRateSelection(kind="pass_rate", samples=4, min=bounds[0], max=bounds[1])


def test_a_round_draws_from_train_or_web_problems():
    params = PARAMS["rl_rounds"]["rl_1"]
    for table in ("problems/train", "web/solutions"):
        assert RoundParams.model_validate({**params, "problems": table}).problems == table
    with pytest.raises(UserError, match="web/solutions"):
        validate_section({**params, "problems": "problems/x"}, "rl_rounds.rl_1", RoundParams, Path("params.yaml"))


def test_a_critic_leaves_steps_to_the_policy():
    rl = load(advantage={**GAE, "critic": {**CRITIC, "warmup_steps": 5}})
    prompt = PlainPrompt.model_validate(PARAMS["prompt"])
    (told,) = round_contradictions(rl, 5, prompt)
    assert told.startswith("rl.advantage.critic.warmup_steps 5 leaves the policy none of the 5 steps: lower it")
    assert not list(round_contradictions(rl, 6, prompt)) and not list(round_contradictions(load(), 1, prompt))


def test_a_round_may_have_a_reward_of_its_own():
    own = {"start_from": "sft", "steps": 1, "warmup_steps": 0, "problems": "problems/train"}
    own |= {"problem_slice": {"index": 0, "count": 1}, "prompt_selection": {"kind": "all"}}
    rl = load(overlong=NONE)
    without, cosine = (
        validate_section({**own, **reward}, "rl_rounds.rl_1", RoundParams, Path("params.yaml")).of(rl)
        for reward in ({}, {"reward": COSINE})
    )
    assert without is rl
    assert cosine.reward.kind == "cosine" and cosine.model_copy(update={"reward": rl.reward}) == rl


VLLM = VllmSamplerParams(
    kind="vllm",
    dtype="float32",
    max_model_tokens=64,
    max_sequences=4,
    memory_fraction=0.5,
    kv_cache_gib=1.0,
    tensor_parallel=1,
    enforce_eager=True,
)


def test_a_sampler_that_differs_on_purpose_and_a_judge_need_the_built_in_one():
    """A mismatch must also have no bound."""
    sampler = TorchSamplerParams.model_validate(PARAMS["sampler"])
    study = {"mismatch": {"kind": "bfloat16_weights"}}
    unbounded = load(weight_sync_check={"sequences": 2, "max_logprob_gap": None}, study=study)
    for rl, one in ((load(), sampler), (load(), VLLM), (unbounded, sampler)):
        assert not list(sampler_contradictions(rl, one))
    (bounded,) = sampler_contradictions(load(study=study), sampler)
    assert "set it to null" in bounded
    (elsewhere,), (judged,) = (sampler_contradictions(rl, VLLM) for rl in (unbounded, load(verifier=MODEL)))
    assert "set sampler.kind torch" in elsewhere and "set sampler.kind torch, or rl.verifier.kind rule" in judged


REPLICAS = {"kind": "ray", "count": 2}
EVALUATION = {"every_steps": 2, "problems": 8, "samples": 4, "temperature": 1.0, "keep": "last", "patience": None}
REPLAY = {"kind": "replay", "schedule": "data/schedules/rl_1"}
RECOMPUTE = {"proximal": "recompute", "rollout_correction": WEIGHTS}
STALE = {"study": {"mismatch": {"kind": "stale_weights", "versions": 1}}}


def contradictions_of(**changes):
    rl = settings(**{"loop": ASYNCHRONOUS, **changes})
    sampler = TypeAdapter(SamplerParams).validate_python({**PARAMS["sampler"], "replicas": REPLICAS})
    trainer = TypeAdapter(TrainerParams).validate_python(PARAMS["trainer"])
    return list(loop_contradictions(rl, sampler, trainer))


def looped(**changes):
    return {"loop": {**ASYNCHRONOUS, **changes}}


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
        {**RECOMPUTE, "evaluation": EVALUATION},
        {"loop": REPLAY, **RECOMPUTE, **STALE},
    ],
)
def test_what_is_sound_is_not_refused(changes):
    assert contradictions_of(**changes) == []


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
    (found,) = contradictions_of(**changes)
    assert re.search(told, found)


def test_an_evaluation_needs_whole_engines_in_the_trainers_ranks():
    rl = settings(loop={**ASYNCHRONOUS, "trainer_ranks": 3}, evaluation=EVALUATION, **RECOMPUTE)
    trainer = SimpleNamespace(kind="deepspeed")
    wide = VLLM.model_copy(update={"tensor_parallel": 2, "replicas": REPLICAS})
    (told,) = loop_contradictions(rl, wide, trainer)
    assert "rl.loop.trainer_ranks 3 makes no whole engines of sampler.tensor_parallel 2: set a multiple" in told
    assert not list(loop_contradictions(rl, wide.model_copy(update={"tensor_parallel": 3}), trainer))


@pytest.fixture(scope="module")
def recipe():
    return read_recipe(PROJECT, "laptop-asynchronous")


def test_the_recipe_is_sound_and_may_select_by_pass_rate(recipe):
    check_values(recipe, "laptop-asynchronous")
    chosen = {name: {**own, "prompt_selection": ALL_PASS_RATES} for name, own in recipe["rl_rounds"].items()}
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
