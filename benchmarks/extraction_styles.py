"""Renders exercises as pages in label styles that the rules of extract_web were developed on.

Each style is a function from exercises to the middle of a page; `render` puts a site around it. The texts come from
gold pairs, so what a reader should find is known. Styles that the rules must not be written against stand in
extraction_held_out.py.
"""

from __future__ import annotations

import html
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NAMES = ("mathfan", "lena_k", "prof_oak", "count42", "j.doe", "Ana B.")
PROSE = (
    "Before you go on, make sure that you can follow each step above.",
    "The next group of exercises uses the same idea in another setting.",
    "Many students find it useful to sketch the situation first.",
    "Recall that a product is zero only when one of its factors is zero.",
)
COMMENTS = (
    "thanks, this saved my day",
    "Is there a typo in the second line?",
    "first!",
    "Great explanation :)",
)
SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")
IMAGE = re.compile(r"!\[(.*?)\]\(([^()\s]*)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Gold:
    """One exercise of a page; `solution` is None where the page has none."""

    number: int
    problem: str
    solution: str | None


Style = Callable[[Sequence[Gold], random.Random], str]


def inline(text: str) -> str:
    """The text as inline HTML, images as elements."""
    pieces, last = [], 0
    for image in IMAGE.finditer(text):
        pieces += [html.escape(text[last : image.start()], quote=False)]
        pieces += [f'<img src="{html.escape(image[2])}" alt="{html.escape(image[1])}">']
        last = image.end()
    return "".join(pieces) + html.escape(text[last:], quote=False)


def formula(text: str) -> str:
    """The text between MathJax delimiters when it has no word, else inline HTML."""
    is_wordless = not re.search(r"[A-Za-z]{3}|[$\\!\[]", text)
    return rf"\({html.escape(text, quote=False)}\)" if is_wordless else inline(text)


def paragraphs(text: str) -> str:
    """The text as HTML paragraphs, one for each sentence or two."""
    sentences = SENTENCE.split(text)
    return "".join(f"<p>{inline(' '.join(sentences[i : i + 2]))}</p>\n" for i in range(0, len(sentences), 2))


def wrong(exercises: Sequence[Gold], exercise: Gold, rng: random.Random) -> str:
    """Another exercise's solution, for answers that are wrong."""
    others = [other.solution for other in exercises if other.solution and other.solution != exercise.solution]
    return rng.choice(others) if others else "I have no idea, sorry."


def each(
    problem: str,
    solution: str,
    end: str = "",
    *,
    without: str = "",
    text: Callable[[str], str] = paragraphs,
    between: str = "\n",
    around: tuple[str, str] = ("", ""),
) -> Style:
    """A style that writes every exercise by the same forms, which name {number}, {count}, {problem} and {solution}.

    `solution` or `without` stands between `problem` and `end`; `text` makes HTML of the two texts.
    """

    def style(exercises: Sequence[Gold], rng: random.Random) -> str:
        written = []
        for one in exercises:
            form = problem + (solution if one.solution else without) + end
            texts = {"problem": text(one.problem), "solution": text(one.solution or "")}
            written.append(form.format(number=one.number, count=len(exercises), **texts))
        return around[0] + between.join(written) + around[1]

    return style


def answers_at_end(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Numbered exercises, then a key with the numbers of those that have an answer."""
    asked = "\n".join(f"<p>{one.number}. {inline(one.problem)}</p>" for one in exercises)
    key = "\n".join(f"<p>{one.number}. {inline(one.solution)}</p>" for one in exercises if one.solution)
    return f"<h2>Exercises</h2>\n{asked}\n<h2>Answers</h2>\n{key}"


def forum(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Threads with several answers; the accepted one, else the one with most votes, is the gold solution."""
    threads = []
    for one in exercises:
        posts = []
        if one.solution:
            votes = rng.randint(8, 40)
            posts = [(votes, rng.random() < 0.5, one.solution)]
            for _ in range(rng.randint(0, 2)):
                posts.append((rng.randint(-3, votes - 1), False, wrong(exercises, one, rng)))
            rng.shuffle(posts)
        body = "\n".join(
            f"<div class='answer{' accepted-answer' if accepted else ''}'><div class='score'>{votes} votes</div>"
            f"<div class='post-text'>{paragraphs(text)}</div><div class='meta'>answered by {rng.choice(NAMES)}</div>"
            f"<ul class='comments'><li>{rng.choice(COMMENTS)}</li></ul></div>"
            for votes, accepted, text in posts
        )
        threads.append(
            f"<div class='thread'><div class='question'><h2>Question #{one.number}</h2><div class='post-text'>"
            f"{paragraphs(one.problem)}</div><div class='meta'>asked by {rng.choice(NAMES)}, {rng.randint(5, 900)}"
            f" views</div></div><h3>{len(posts)} Answer{'s' if len(posts) != 1 else ''}</h3>{body}</div>"
        )
    return "\n".join(threads)


def script_toggles(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Links and hidden boxes that a script opens."""
    return "\n".join(
        f'<div class="item"><span class="num">{one.number})</span> {inline(one.problem)}<br>'
        + (
            f'<a href="#" onclick="return flip(\'s{one.number}\')">[show solution]</a>'
            f'<div id="s{one.number}" style="display:none">{paragraphs(one.solution)}</div>'
            if one.solution
            else ""
        )
        + "</div>"
        for one in exercises
    )


STYLES: dict[str, Style] = {
    "headings": each("<h3>Exercise {number}</h3>\n{problem}", "<h4>Solution</h4>\n{solution}"),
    "disclosure": each(
        "<div><p><b>{number}.</b> {problem}</p>",
        "<details><summary>Show Answer</summary><p>{solution}</p></details>",
        "</div>",
        text=formula,
    ),
    "definitions": each(
        "<dt>Problem {number}</dt><dd>{problem}</dd>",
        "<dt>Solution</dt><dd>{solution}</dd>",
        around=("<dl>", "</dl>"),
    ),
    "table": each(
        "<tr><td>{number}</td><td>{problem}</td>",
        "<td>{solution}</td>",
        "</tr>",
        without="<td></td>",
        text=inline,
        around=(
            "<table><thead><tr><th>#</th><th>Question</th><th>Answer</th></tr></thead><tbody>",
            "</tbody></table>",
        ),
    ),
    "inline_letters": each(
        "<p><b>Q{number}.</b> {problem}</p>", "\n<p><b>A.</b> {solution}</p>", text=inline
    ),
    "answers_at_end": answers_at_end,
    "script_toggles": script_toggles,
    "forum": forum,
}


def render(style: Style, exercises: Sequence[Gold], seed: str) -> str:
    """A whole page: navigation, advertisement, prose, the exercises, comments, licence. Equal seeds, equal pages."""
    rng = random.Random(seed)
    middle = style(exercises, rng)
    return (
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>Practice · The Math Corner</title>"
        "<script>window.answers = {question: 1, answer: 'Answer: 42'};</script><style>.a{color:red}</style></head>\n"
        "<body><header><a href='/'>The Math Corner</a></header><nav><ul><li><a href='/1'>Exercise 1</a></li>"
        "<li><a href='/2'>Solutions</a></li><li><a href='/3'>Forum</a></li></ul></nav>"
        "<div class='sidebar'><h4>Answer of the day</h4><p>Seven.</p></div>\n<main>"
        f"<h1>Practice</h1>\n<p>{rng.choice(PROSE)}</p>\n<!-- Solution: none -->\n{middle}\n</main>\n"
        f"<div id='comments'><h3>2 comments</h3><p>{rng.choice(NAMES)}: {rng.choice(COMMENTS)}</p>"
        "<p>Answer: nobody knows</p></div><div class='ad'>Question: want better marks? Answer: buy our course!</div>"
        "<footer><p>© The Math Corner. This work is licensed under CC BY-SA.</p></footer>"
        "<script>track('page');</script></body></html>"
    )
