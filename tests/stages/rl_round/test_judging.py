"""A model as the round's verifier: its training, its comparison with the rules, and that resumes repeat it."""

import math
from collections import Counter

import pytest

from stages.__main__ import main
from stages.algorithms.answers.verdicts import Verdict
from stages.engines.policies.tokenizers import encode_prompt, encode_response, load_tokenizer
from stages.engines.samplers.build import build_sampler
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.trainers.params import TorchTrainerParams
from stages.engines.verifier.model_judge import same_request
from stages.engines.verifier.verifier import Judgement
from stages.foundations.errors import UserError
from stages.foundations.params import PlainPrompt
from stages.rl_round.judging import CheckedJudge, made_pairs, taught_judge
from stages.rl_round.loop.batch_source import agreement_metrics
from stages.rl_round.methods import MadePairs
from tests.fakes.rounds import MODEL, NONE
from tests.fakes.taught_policy import PARAMS, rl_flags, write_params


class Said:
    """Judges by a list of verdicts."""

    def __init__(self, *said):
        self.said = said

    def judge(self, pairs, truncated=None, require_marker=False):
        return [Judgement(Verdict(verdict), None, "x", reason) for verdict, reason in self.said]


def test_the_judge_counts_and_the_rules_are_compared():
    unparsed = ("unparsed", "no_judgement"), ("unparsed", "not_found")
    judge = Said(("correct", ""), ("correct", ""), ("wrong", ""), *unparsed)
    rules = Said(("correct", ""), ("wrong", ""), ("correct", ""), ("correct", ""), ("wrong", ""))
    checked = CheckedJudge(judge, rules)
    judged = checked.judge([("1", "")] * 5)
    # A missing judgement is the judge's failure; an answer that is not found is a fact about the response.
    assert [one.verdict for one in judged] == ["correct", "correct", "wrong", "crashed", "unparsed"]
    assert agreement_metrics(checked.pop_judged()) == {
        "verdict/rule_agreement_fraction": 0.5,
        "verdict/false_correct_fraction": 0.25,
        "verdict/false_wrong_fraction": 0.25,
    }
    assert checked.pop_judged() == []


def test_made_pairs_are_half_equal_and_follow_the_seed():
    pairs = made_pairs(["3", "5", "5", "5", "8"], 600, seed=1)
    assert sum(gold == prediction for gold, prediction in pairs) == 300
    assert all(150 < count < 250 for count in Counter(gold for gold, _ in pairs).values())
    assert pairs == made_pairs(["8", "5", "3"], 600, seed=1) != made_pairs(["8", "5", "3"], 600, seed=2)
    with pytest.raises(UserError, match=r"two different answers, and the problems have 1: set teaching"):
        made_pairs(["5", "5"], 4, seed=0)


def test_lessons_make_the_policy_answer_with_the_words(taught, tmp_path):
    lessons = MadePairs(kind="made_pairs", steps=20, pairs_per_step=16, learning_rate=0.005)
    trainer, prompt = TorchTrainerParams.model_validate(PARAMS["trainer"]), PlainPrompt(**PARAMS["prompt"])
    answers = ["0", "1", "2"]
    folder = taught_judge(lessons, trainer, prompt, taught / "sft", answers, tmp_path, 0, "rl_1")
    first = (folder / "model.safetensors").read_bytes()
    assert taught_judge(lessons, None, prompt, None, answers, tmp_path, 0, "rl_1") == folder  # reused, not made again
    assert (folder / "model.safetensors").read_bytes() == first

    def mass(policy):
        """Returns the sum of the probabilities of `yes` and `no`."""
        tokenizer = load_tokenizer(policy)
        sampler = build_sampler(TorchSamplerParams.model_validate(PARAMS["sampler"]), policy)
        asked = encode_prompt(tokenizer, prompt, same_request("1", "2"))
        words = [encode_response(tokenizer, word) for word in ("yes", "no")]
        return sum(math.exp(sum(row)) for row in sampler.logprobs([asked, asked], words))

    assert mass(folder) > 0.5 > 0.01 > mass(taught / "sft")


def test_a_judge_that_leaves_too_much_undecided_stops_the_round(taught, tmp_path):
    reading = {"kind": "likelier_word", "undecided_margin": 1000.0}
    undecided = {**MODEL, "reading": reading, "teaching": NONE}
    params = write_params(tmp_path / "params.yaml", {"rl.verifier": undecided})
    with pytest.raises(UserError, match=r"could not decide \d+ of \d+ .*\(crashed\).*lower rl.verifier.reading"):
        main(rl_flags(taught, params, tmp_path))
