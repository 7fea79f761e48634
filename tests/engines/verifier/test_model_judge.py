from types import MappingProxyType

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import Sample, StopReason
from stages.engines.verifier.model_judge import (
    RESPONSE_LINES,
    ModelJudge,
    WordJudge,
    judge_request,
    read_judgement,
    same_request,
)
from stages.foundations.params import PlainPrompt


class Letters:
    """A tokenizer of characters."""

    eos_token_id = 0
    added_tokens_decoder = MappingProxyType({})

    def encode(self, text, add_special_tokens):
        return [ord(letter) for letter in text]

    def decode(self, token_ids, skip_special_tokens):
        return "".join(map(chr, token_ids))


class ScriptedSampler:
    """Answers each prompt by a function of its text, and stores the prompts."""

    policy_version = 0

    def __init__(self, answer):
        self.answer, self.asked, self.settings, self.is_closed = answer, [], None, False

    def stream(self, trajectories, settings):
        self.settings = settings
        prompts = ["".join(map(chr, one.prompt)) for one in trajectories]
        self.asked += prompts
        for index, prompt in enumerate(prompts):
            output = [ord(letter) for letter in self.answer(prompt)]
            yield index, Sample(output, [0.0] * len(output), StopReason.END_OF_SEQUENCE, 0)

    def close(self):
        self.is_closed = True


def judge_with(answer):
    sampler = ScriptedSampler(answer)
    return sampler, ModelJudge(sampler, Letters(), PlainPrompt(kind="plain", template="{problem}\n"), seed=0)


def test_judgements_are_verdicts_in_order_and_equal_pairs_are_asked_once():
    words = {"seven": "so Judgement: correct", "eight": "Judgement: wrong", "none": "Judgement: not_found", "odd": "?"}
    sampler, judge = judge_with(lambda prompt: next(said for word, said in words.items() if word in prompt))
    with judge:
        pairs = [("7", "seven"), ("7", "eight"), ("7", "none"), ("7", "odd"), ("7", "seven")]
        judged = judge.judge(pairs, truncated=[True] * 5, require_marker=True)
    assert [one.verdict for one in judged] == ["correct", "wrong", "unparsed", "unparsed", "correct"]
    assert [one.reason for one in judged] == ["correct", "wrong", "not_found", "no_judgement", "correct"]
    assert {one.path for one in judged} == {"judge"}
    assert len(sampler.asked) == 4
    assert (sampler.settings.temperature, sampler.settings.max_response_tokens) == (0.0, 1024)
    assert sampler.is_closed


def test_nothing_to_judge_asks_nothing():
    sampler, judge = judge_with(lambda prompt: "")
    assert judge.judge([]) == []
    assert sampler.asked == []


def test_the_judge_sees_the_last_lines_and_the_solution():
    response = "\n".join(f"line {n};" for n in range(50))
    request = judge_request("the {response} is \\frac{1}{2}", response)
    assert "line 49;" in request
    assert f"line {50 - RESPONSE_LINES};" in request
    assert f"line {49 - RESPONSE_LINES};" not in request
    assert "the {response} is \\frac{1}{2}" in request  # inserted text is not filled in again
    assert len(judge_request("x" * 10**6, "y" * 10**6)) < 20_000


def test_the_last_judgement_counts_in_any_layout():
    assert read_judgement("Judgement: wrong ... no.\n**Judgment:** `Correct`").verdict is Verdict.CORRECT
    assert read_judgement("Judgement: correctly done").verdict is Verdict.UNPARSED
    assert read_judgement("").verdict is Verdict.UNPARSED


class WordScorer:
    """Gives `yes` a log-prob that is higher than that of `no` by `gap(prompt)` nats, and stores its prompts."""

    def __init__(self, gap):
        self.gap, self.asked, self.is_closed = gap, [], False

    def logprobs(self, prompts, responses):
        texts = ["".join(map(chr, prompt)) for prompt in prompts]
        words = ["".join(map(chr, response)) for response in responses]
        assert set(words) <= {"yes\0", "no\0"}  # each word with the end of the response
        self.asked += texts
        return [
            [self.gap(text) if word == "yes\0" else 0.0, *[0.0] * (len(word) - 1)]
            for text, word in zip(texts, words, strict=True)
        ]

    def close(self):
        self.is_closed = True


def word_judge(gap, margin=0.1, **others):
    scorer, prompt = WordScorer(gap), PlainPrompt(kind="plain", template="{problem}\n")
    return scorer, WordJudge(scorer, Letters(), prompt, margin, **others)


def test_the_likelier_word_decides_and_near_words_leave_it_undecided():
    gaps = {
        same_request("7", "7"): 2.0,
        same_request("7", "8"): -2.0,
        same_request("7", "9"): 0.05,
        same_request("7", "5"): float("nan"),
    }
    scorer, judge = word_judge(lambda prompt: gaps[prompt.removesuffix("\n")])
    with judge:
        boxed = [("7", f"so \\boxed{{{answer}}}") for answer in "78957"]
        judged = judge.judge(boxed, require_marker=True)
        assert [one.verdict for one in judged] == ["correct", "wrong", "crashed", "crashed", "correct"]
        assert [one.reason for one in judged] == ["yes", "no", "undecided", "undecided", "yes"]
        assert [one.extracted for one in judged] == list("78957")
        assert len(scorer.asked) == 8
        assert judge.judge(boxed) == judged and len(scorer.asked) == 8  # each pair is judged only once
    assert scorer.is_closed


def test_a_tie_is_undecided_also_without_a_margin():
    _, judge = word_judge(lambda prompt: 0.0, margin=0.0)
    assert judge.judge([("7", "\\boxed{7}")])[0].reason == "undecided"


def test_a_response_without_a_prediction_is_unparsed_and_not_asked_about():
    scorer, judge = word_judge(lambda prompt: 1.0)
    pairs = [("7", ""), ("7", "7"), ("7", "The answer is 7"), ("7", "\\boxed{" + "7" * 300 + "}")]
    judged = judge.judge(pairs, truncated=[False, False, True, False], require_marker=True)
    assert {one.verdict for one in judged} == {Verdict.UNPARSED}
    assert [one.reason for one in judged[1:3]] == ["no_answer_marker", "truncated"]
    assert scorer.asked == []
    assert judge.judge([("7", "7")])[0].verdict is Verdict.CORRECT  # a bare answer, if no marker is required


def test_an_answer_inside_a_thought_is_not_asked_about():
    scorer, judge = word_judge(lambda prompt: 1.0, thought_markers=("[THINK]", "[/THINK]"))
    judged = judge.judge([("7", r"[THINK]\boxed{7}"), ("7", r"\boxed{8}[/THINK]\boxed{7}")], require_marker=True)
    assert [one.reason for one in judged] == ["unfinished_thought", "yes"]
    assert [one.extracted for one in judged] == [None, "7"] and len(scorer.asked) == 2
