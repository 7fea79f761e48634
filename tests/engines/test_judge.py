from stages.algorithms.answers.verdicts import Verdict
from stages.engines.judge import RESPONSE_LINES, ModelJudge, judge_request, read_judgement
from stages.foundations.prompts import PlainPrompt
from stages.foundations.records import Sample, StopReason


class Letters:
    """A tokenizer of characters."""

    def encode(self, text, add_special_tokens):
        return [ord(letter) for letter in text]

    def decode(self, token_ids, skip_special_tokens):
        return "".join(map(chr, token_ids))


class ScriptedSampler:
    """Answers each prompt by a function of its text, and remembers what it was asked."""

    policy_version = 0

    def __init__(self, answer):
        self.answer, self.asked, self.settings, self.is_closed = answer, [], None, False

    def sample(self, prompts, samples_per_prompt, settings, seed, label=""):
        self.settings = settings
        self.asked += ["".join(map(chr, prompt)) for prompt in prompts]
        outputs = [[ord(letter) for letter in self.answer("".join(map(chr, prompt)))] for prompt in prompts]
        return [[Sample(output, [0.0] * len(output), StopReason.END_OF_SEQUENCE)] for output in outputs]

    def close(self):
        self.is_closed = True


def judge_with(answer):
    sampler = ScriptedSampler(answer)
    return sampler, ModelJudge(sampler, Letters(), PlainPrompt(kind="plain", template="{problem}\n"), seed=0)


def test_judgements_are_verdicts_in_order_and_equal_pairs_are_asked_once():
    words = {
        "seven": "so Judgement: correct",
        "eight": "Judgement: wrong",
        "none": "Judgement: not_found",
        "odd": "?",
    }
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
    assert "the {response} is \\frac{1}{2}" in request  # what is put in is not filled in again
    assert len(judge_request("x" * 10**6, "y" * 10**6)) < 20_000


def test_the_last_judgement_counts_in_any_layout():
    assert read_judgement("Judgement: wrong ... no.\n**Judgment:** `Correct`").verdict is Verdict.CORRECT
    assert read_judgement("Judgement: correctly done").verdict is Verdict.UNPARSED
    assert read_judgement("").verdict is Verdict.UNPARSED
