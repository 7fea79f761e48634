"""Section `rl`: every choice loads, and settings that contradict each other are told with their remedy."""

from pathlib import Path

import pytest

from stages.foundations.errors import UserError
from stages.foundations.params import validate_section
from stages.rl_round.methods import PassRateSelection
from stages.rl_round.params import RlParams, RoundParams
from tests.fakes.taught_policy import PARAMS

OTB = {"kind": "optimal_token_baseline", "lone_tail": "zero", "is_importance_weighted": False}
TRM = {"kind": "trust_region_masking", "max_threshold": 0.05, "mean_threshold": 0.001, "divergence": "sampled"}
WEIGHTS = {"kind": "importance_weights", "level": "token", "cap": 2.0}
SAFE_SET = {"kind": "safe_set", "log_threshold": -13.0, "outside": "drop_token"}
COSINE = {"kind": "cosine", "r0_correct": 2, "rL_correct": 1, "r0_wrong": -10, "rL_wrong": 0, "exceeded": -10}
NGRAM = {"kind": "ngram", "n": 4, "penalty": -0.05, "discount": 0.99}
NONE = {"kind": "none"}
MODEL = {
    "kind": "model",
    "reading": {"kind": "likelier_word", "undecided_margin": 0.0},
    "teaching": {"kind": "made_pairs", "steps": 5, "pairs_per_step": 8, "learning_rate": 0.005},
}
WHOLE = {"kind": "whole", "max_gib": 1.0}
EXACT = {"rollout_correction": {**TRM, "divergence": "exact"}, "study": {"rollout_distributions": WHOLE}}


def load(**changes):
    return validate_section({**PARAMS["rl"], **changes}, "rl", RlParams, Path("params.yaml"))


@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": {"kind": "leave_one_out"}},
        {"advantage": {"kind": "length_weighted"}},
        {"advantage": OTB},
        {"advantage": {**OTB, "is_importance_weighted": True}, "rollout_correction": WEIGHTS},
        {"advantage": {"kind": "reward"}, "group_size": 1, "dynamic_sampling": NONE},
        {"policy_loss": {"kind": "gspo", "clip_low": 0.0003, "clip_high": 0.0004}},
        {"policy_loss": {"kind": "cispo", "clip_low": 1.0, "clip_high": 2.0}},
        {"policy_loss": {"kind": "reinforce"}, "proximal": "rollout", "rollout_correction": WEIGHTS},
        {"rollout_correction": TRM, "proximal": "rollout"},
        {"rollout_correction": {**TRM, "mean_threshold": None}},
        EXACT,
        {"verifier": MODEL},
        {"verifier": {"kind": "model", "reading": {"kind": "written", "max_tokens": 64}, "teaching": NONE}},
        {**EXACT, "study": {"rollout_distributions": WHOLE, "vocabulary_pruning": SAFE_SET}},
        {"study": {"vocabulary_pruning": SAFE_SET}},
        {"reference_kl": {"kind": "k3", "coefficient": 0.01}},
        {"reward": COSINE, "overlong": NONE, "study": {"repetition_penalty": NGRAM, "reward_discount": 0.99}},
        {"weight_sync_check": {"sequences": 2, "max_logprob_gap": None}},
    ],
)
def test_every_choice_loads(changes):
    assert load(**changes).model_dump(include=set(changes), exclude_unset=True) == changes


def test_an_absent_study_is_off():
    """So is each of its settings that is absent; `none` is no way to say it."""
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
        ({**EXACT, "study": {}}, "study.rollout_distributions: {kind: whole, .* or set divergence sampled"),
        ({**EXACT, "rollout_correction": TRM}, "keeps what only an exact divergence reads: leave it out"),
        ({**EXACT, "rollout_correction": NONE}, "keeps what only an exact divergence reads: leave it out"),
        ({"study": {"rollout_distributions": {"kind": "whole"}}}, r"max_gib: missing"),
        ({"verifier": {**MODEL, "teaching": {"kind": "prayer"}}}, "verifier.model.teaching.*made_pairs"),
        ({"rollout_correction": {**TRM, "max_threshold": None, "mean_threshold": None}}, "both null"),
        ({"study": {"vocabulary_pruning": SAFE_SET}, "top_p": 0.9}, "set top_p 1.0 and top_k 0"),
        ({"study": {"vocabulary_pruning": SAFE_SET}, "top_k": 50}, "set top_p 1.0 and top_k 0"),
        ({"study": {"vocabulary_pruning": {**SAFE_SET, "log_threshold": 1.0}}}, "less than 0"),
        ({"study": {"reward_discount": 0.0}}, r"reward_discount.*must lie in \(0, 1\], not 0"),
        ({"study": {"reward_discount": 1.5}}, r"must lie in \(0, 1\], not 1.5: set 1.0"),
        ({"study": {"repetition_penalty": {**NGRAM, "discount": 1.01}}}, r"discount.*must lie in \(0, 1\]"),
        ({"study": {"repetition_penalty": {**NGRAM, "n": 12}}}, "n 12 must be less than max_response_tokens 12"),
        ({"reward": COSINE}, "set overlong.kind none, or reward.kind by_verdict"),
        ({"policy_loss": {"kind": "gspo", "clip_low": 0.4, "clip_high": 0.3}}, "clip_low 0.4 must be <= clip_high 0.3"),
        ({"advantage": {"kind": "gae"}}, "optimal_token_baseline"),
    ],
)
def test_contradictions_are_refused_with_what_to_change(changes, told):
    with pytest.raises(UserError, match=told):
        load(**changes)


def test_a_selection_that_nothing_can_pass_is_refused():
    with pytest.raises(ValueError, match="no pass rate of 4 samples"):
        PassRateSelection(kind="pass_rate", samples=4, min=0.3, max=0.4)
    with pytest.raises(ValueError, match="no pass rate of 4 samples"):
        PassRateSelection(kind="pass_rate", samples=4, min=0.8, max=0.2)


def test_a_round_draws_from_train_or_web_problems():
    params = PARAMS["rl_rounds"]["rl_1"]
    for table in ("problems/train", "web/solutions"):
        assert RoundParams.model_validate({**params, "problems": table}).problems == table
    with pytest.raises(UserError, match="web/solutions"):
        validate_section({**params, "problems": "problems/x"}, "rl_rounds.rl_1", RoundParams, Path("params.yaml"))


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
