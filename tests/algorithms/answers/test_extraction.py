import pytest

from stages.algorithms.answers.extraction import MAX_ANSWER_CHARACTERS, extract_answer, extract_gold


@pytest.mark.parametrize(
    ("response", "text", "rule"),
    [
        (r"so \boxed{12}.", "12", "box"),
        (r"first \boxed{3}, wait, \boxed{4}", "4", "box"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}", "box"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}", "box"),
        (r"\boxed {7} and \fbox{8}", "7, 8", "boxes"),
        (r"$\boxed{2}$, $\boxed{3}$ or $\boxed{5}$", "2, 3, 5", "boxes"),
        (r"\boxed{840}. Let me check. \boxed{840}", "840", "box"),
        (r"\boxed{5} and so the total is \boxed{12}", "12", "box"),
        (r"\boxed{x = \boxed{3}}", r"x = \boxed{3}", "box"),
        (r"it is \boxed 5", "5", "box"),
        ("She sells 9 eggs.\n#### 1,234", "1,234", "marker"),
        ("**Answer:** 42", "42", "marker"),
        ("So the answer is **72**.", "72", "marker"),
        (r"\boxed{35} ++++ \boxed{4}", "35, 4", "boxes"),
        (r"\boxed{2}+\boxed{3}", "3", "box"),
        ("**Final Answer**: $x^2$. I hope it is correct.", "$x^2$", "marker"),
        ("The answer is (B). Because of that we stop.", "(B)", "marker"),
        ("The answer is 12.5.", "12.5", "marker"),
        ("Answer: 3\nNo, answer: 4", "4", "marker"),
        ("<think>1</think> <answer>2</answer>", "2", "tag"),
        (r"<answer>so \boxed{2}</answer>", "2", "box"),
        (r"\boxed{1}, correction: \boxed{2}", "2", "box"),
        ("答案是42。", "42", "marker"),
        ("La réponse finale est 42.", "42", "marker"),
        ("अंतिम उत्तर 42 है।", "42", "marker"),
        ("Answer:\n\\[\n x + 1 \n\\]\n", "x + 1", "marker"),
        ("2+2=4\nA: 4", "4", "marker"),
        (r"\boxed{255} is the interest. Final Answer: The final answer is $10,455$.", "$10,455$", "marker"),
        ("<think>\\boxed{1}</think>\nThe answer is 2", "2", "marker"),
        ("3/4", "3/4", "bare"),
        ("7" * 5_000, "7" * 5_000, "bare"),
        ("### Answer\n\n91", "91", "marker"),
        ("**Final Answer**\n\\[ 4 \\]", "4", "marker"),
        ("Ans: 312", "312", "marker"),
        ("The answer is 72, in total, so we stop.", "72, so we stop", "marker"),
        ("$\\boxed{a \\ll b}$ holds.\n**Answer: D**", "D", "marker"),
        ("\\boxed{4}\nAnswer: 5", "4", "box"),
        (r"so \boxed{25}" + "\n" + "#" * 40 + "\n##", "25", "box"),
        ("word " * 200 + "\nThus it is 7.", "Thus it is 7.", "last_sentence"),
    ],
)
def test_finds_the_answer(response, text, rule):
    found = extract_answer(response)
    assert (found.text.strip(), found.rule) == (text, rule)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (r"so \boxed{12", "unclosed_box"),
        (r"\boxed{1} but then \boxed{\frac{1}{2}", "unclosed_box"),
        (r"\boxed{", "unclosed_box"),
        (r"\boxed{5\}", "unclosed_box"),
        (r"\boxed{}", "empty"),
        ("Answer:", "empty"),
        ("  \n ", "empty"),
        (r"\boxed{" + "9" * (MAX_ANSWER_CHARACTERS + 1) + "}", "answer_too_long"),
    ],
)
def test_says_why_there_is_no_answer(response, reason):
    found = extract_answer(response)
    assert found.text is None
    assert found.rule == reason


@pytest.mark.parametrize(
    "response",
    [
        "\\boxed{" * 200_000,
        "\\boxed{" + "(" * 2_000_000 + "}",
        "{" * 500_000 + "\\boxed{" + "}" * 500_000,
        "answer" * 100_000,
        "answer" + " " * 500_000 + "is",
        "A: " + " \n" * 300_000 + "x",
        "$" * 500_000,
        "." * 500_000 + " " * 500_000,
        "\\boxed{1}," * 100_000,
        "\x00\ud800" * 100_000,
    ],
)
@pytest.mark.timeout(240)
def test_hostile_text_costs_no_more_than_its_length(response):
    """A second at most; a reading whose cost grows with the square takes hours and is stopped."""
    extract_answer(response)


def test_only_marked_answers_are_called_marked():
    assert extract_answer(r"\boxed{1}").is_marked
    assert extract_answer("#### 1").is_marked
    assert not extract_answer("1").is_marked


def test_a_gold_box_may_lack_its_end():
    assert extract_gold(r"so \boxed{x = 1").text == "x = 1"
    assert extract_gold(r"so \boxed{7}").text == "7"
    assert extract_gold(r"so \boxed{").text is None


@pytest.mark.parametrize(
    ("response", "answer", "rule"),
    [
        (r"<think>so it is \boxed{42}", None, "unfinished_thought"),
        (r"<think>Perhaps \boxed{5}. But wait, let me check the second case", None, "unfinished_thought"),
        ("Let me see.<think>The answer is 42", "Let me see.", "bare"),
        (r"<think>It is \boxed{7}.</think> The answer is \boxed{5}.", "5", "box"),
        (r"It is \boxed{7}.</think> The answer is \boxed{5}.", "5", "box"),
        (r"<think>It is \boxed{7}.</think>", "7", "box"),
        ("<answer>92</answer><think><answer>91</answer></think>", "92", "tag"),
        (r"<think>a</think>b <think>c</think> \boxed{5}", "5", "box"),
        (r"\boxed{92} <!-- \boxed{91} -->", "92", "box"),
        (r"\boxed{92} <!-- \boxed{91}", "92", "box"),
        ("\\boxed{92}\n% \\boxed{91}", "92", "box"),
        ("\\boxed{92}\n```\n\\boxed{91}\n```", "92", "box"),
        ("```\n\\boxed{5}\n```", "5", "box"),
    ],
)
def test_what_no_reader_sees_is_no_answer(response, answer, rule):
    found = extract_answer(response)
    assert (found.text, found.rule) == (answer, rule)


@pytest.mark.parametrize(
    "response",
    [
        r"It cannot be \boxed{42}.",
        r"The answer is not \boxed{42}.",
        r"So $x \ne \boxed{5}$.",
        r"We rule out \boxed{5}.",
        r"So \boxed{91}. Hmm, that is not right.",
        "So \\boxed{91}\n\nActually no, I forgot one case; it should be 92.",
        r"\boxed{42} is not the answer",
        r"\boxed{42} is wrong.",
        r"The answer is \boxed{91}. But that can't be right.",
        r"So \boxed{91}, which is impossible.",
    ],
)
def test_a_box_that_is_denied_or_taken_back_is_no_answer(response):
    assert extract_answer(response).rule == "denied_answer"


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{42} is not divisible by 5.",
        r"It is not 41 but \boxed{42}.",
        r"The answer is \boxed{42}. Wait, let me check: 6*7=42. Yes, that is right.",
        r"\boxed{41} is wrong. It is \boxed{42}.",
        r"our answer is $\boxed{42}.$ Note: the maximum is $7,$ since it is impossible for a sum to include others.",
        r"So \boxed{42}, and it is not possible to do better.",
        "the answer is $\\boxed{42}$.\n Note that $a$ cannot be $0$: the base would be 1, which is not possible.",
        "the answer $\\boxed{42}$.\n It should be noted that the two cases differ.",
        r"So \boxed{42}. We check that this is not possible for 43.",
    ],
)
def test_a_box_beside_other_denials_is_the_answer(response):
    assert extract_answer(response).text == "42"
