"""Renders exercises as pages in the markup of kinds of sites: the third and fourth group of label styles.

`THIRD` follows what widely used software writes into pages (accordions, FAQ and quiz plugins, notebooks, tab panels,
PDF converters, flash cards) and labels in other languages. It was written by a reader of the rules, from how such
sites look, and measured before any rule was touched; then the rules were mended. `FOURTH` was written after that and
measured once before anything was changed. docs/extraction.md has the figures of both first looks.
"""

from __future__ import annotations

import html
import random
import re
import textwrap
from collections.abc import Sequence

from benchmarks.extraction_styles import COMMENTS, IMAGE, NAMES, Gold, Style, each, inline, paragraphs, wrong

NUMBERS = re.compile(r"(?<![\w$\\])\d[\d.,+*/=()−-]*\d|(?<![\w$\\])\d\b")


def stack_threads(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Threads with vote cells, tags, user cards and comments; the accepted answer need not have most votes."""
    threads = []
    for one in exercises:
        answers = []
        if one.solution:
            votes, is_accepted = rng.randint(3, 40), rng.random() < 0.6
            answers = [(votes, is_accepted, one.solution)]
            most = votes + 9 if is_accepted else votes - 1
            answers += [
                (rng.randint(-2, most), False, wrong(exercises, one, rng)) for _ in range(rng.randint(0, 2))
            ]
            answers.sort(key=lambda answer: -answer[0])
        posts = "".join(
            f"<div id='answer-{rng.randint(10**5, 10**6)}' class='answer js-answer"
            f"{' accepted-answer js-accepted-answer' if accepted else ''}' data-score='{votes}'>"
            f"{_post(votes, text, 'answercell', rng)}</div>"
            for votes, accepted, text in answers
        )
        threads.append(
            "<div id='question-header'><h1 class='fs-headline1'><a class='question-hyperlink' href='/q'>Homework "
            f"question</a></h1></div><div class='question js-question' data-score='4'>"
            f"{_post(4, one.problem, 'postcell', rng)}</div><div id='answers-header'><h2>{len(answers)} Answers</h2>"
            f"<div class='sort'>Sorted by: Highest score (default)</div></div><div id='answers'>{posts}</div>"
        )
    return "\n".join(threads)


def _post(votes: int, text: str, cell: str, rng: random.Random) -> str:
    return (
        "<div class='post-layout'><div class='votecell'><div class='js-voting-container'><button aria-label='Up vote'>"
        f"▲</button><div class='js-vote-count' data-value='{votes}'>{votes}</div><button aria-label='Down vote'>▼"
        f"</button></div></div><div class='{cell}'><div class='s-prose js-post-body' itemprop='text'>"
        f"{paragraphs(text)}</div><div class='post-taglist'><a class='post-tag' href='/t'>algebra</a></div>"
        "<div class='post-menu'><a href='/s'>Share</a> <a href='/e'>Cite</a> <a href='/f'>Follow</a></div>"
        f"<div class='user-info'><div class='user-action-time'>on <span class='relativetime'>Mar 3, 2019</span>"
        f"</div><a href='/u'>{rng.choice(NAMES)}</a> 1,203</div></div><ul class='comments-list'><li>"
        f"<span class='comment-copy'>{rng.choice(COMMENTS)}</span></li></ul></div>"
    )


def tab_panels(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Tabs: all names first, then the panels, joined by ids alone."""
    boxes = []
    for one in exercises:
        parts = [("Problem", one.problem), ("Hint", rng.choice(("Draw a picture.", "Start with the units.")))]
        parts += [("Solution", one.solution)] if one.solution else []
        names = "".join(
            f"<li role='presentation'><a id='t{one.number}-{i}' role='tab' href='#p{one.number}-{i}'>{name}</a></li>"
            for i, (name, _) in enumerate(parts)
        )
        panels = "".join(
            f"<div role='tabpanel' class='tab-pane' id='p{one.number}-{i}' aria-labelledby='t{one.number}-{i}'>"
            f"{paragraphs(text)}</div>"
            for i, (_, text) in enumerate(parts)
        )
        boxes.append(
            f"<h3>{one.number}.</h3><ul class='nav-tabs' role='tablist'>{names}</ul><div>{panels}</div>"
        )
    return "\n".join(boxes)


def pdf_lines(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A converted PDF: every printed line is a paragraph, page numbers between, solutions after the exercises."""
    asked = [line for one in exercises for line in _printed(f"{one.number}. {one.problem}")]
    solved = [line for one in exercises if one.solution for line in _printed(f"{one.number}. {one.solution}")]
    lines = [*asked, "<p class='p9 ft7'><b>Solutions</b></p>", *solved]
    for place in range(40, len(lines), 41):
        lines.insert(place, f"<p class='p0 ft4'>– {place // 40} –</p>")
    return "\n".join(f"<div class='pg'>{''.join(lines[i : i + 41])}</div>" for i in range(0, len(lines), 41))


def _printed(text: str) -> list[str]:
    whole = IMAGE.sub(lambda image: image[0].replace(" ", "\0").replace("\n", "\0"), text)
    lines = textwrap.wrap(whole, 90, break_long_words=False, break_on_hyphens=False)
    return [f"<p class='p3 ft1'>{inline(line.replace(chr(0), ' '))}</p>" for line in lines]


def several_solutions(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A contest wiki: solutions are numbered within their problem; the first is the gold one."""
    return "\n".join(
        f"<h2>Problem {one.number}</h2>{paragraphs(one.problem)}"
        + (
            f"<h2>Solution 1</h2>{paragraphs(one.solution)}<p>~{rng.choice(NAMES)}</p>"
            f"<h2>Solution 2</h2>{paragraphs(wrong(exercises, one, rng))}"
            if one.solution
            else ""
        )
        + "<h2>See Also</h2><p>Problems of other years and their discussion.</p>"
        for one in exercises
    )


def preformatted(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Typed text in one preformatted block, wrapped and indented."""

    def wrapped(text: str) -> str:
        return html.escape(
            textwrap.fill(text, 72, initial_indent="   ", subsequent_indent="   "), quote=False
        )

    return (
        "<pre>\n"
        + "\n\n".join(
            f"Problem {one.number}\n\n{wrapped(one.problem)}"
            + (f"\n\nSolution:\n\n{wrapped(one.solution)}" if one.solution else "")
            for one in exercises
        )
        + "\n</pre>"
    )


def katex(text: str) -> str:
    """Inline HTML whose formulas stand twice: for machines as MathML with TeX, for the eye as spans."""
    pieces, last = [], 0
    for found in NUMBERS.finditer(text):
        formula = html.escape(found[0])
        pieces += [
            inline(text[last : found.start()]),
            "<span class='katex'><span class='katex-mathml'><math><semantics><mrow><mtext>"
            f"{formula}</mtext></mrow><annotation encoding='application/x-tex'>{formula}</annotation>"
            "</semantics></math></span><span class='katex-html' aria-hidden='true'><span class='base'>"
            f"<span class='strut'></span><span class='mord'>{formula}</span></span></span></span>",
        ]
        last = found.end()
    return "".join([*pieces, inline(text[last:])])


THIRD: dict[str, Style] = {
    "accordion": each(
        "<div class='accordion-item'><h2 class='accordion-header'><button class='accordion-button collapsed' "
        "data-bs-toggle='collapse' data-bs-target='#c{number}' aria-expanded='false'>{problem}</button></h2>",
        "<div id='c{number}' class='accordion-collapse collapse'><div class='accordion-body'>{solution}</div></div>",
        "</div>",
        text=inline,
        around=("<div class='accordion'>", "</div>"),
    ),
    "faq_plugin": each(
        "<div class='ufaq-faq-div'><div class='ufaq-faq-title'><a class='ufaq-post-margin' href='#f{number}'>"
        "<div class='ufaq-symbol'><span>+</span></div><div class='ufaq-faq-title-text'><h4>{problem}</h4></div></a>"
        "</div>",
        "<div class='ufaq-faq-body ufaq-hidden'><div class='ufaq-faq-post'>{solution}</div></div>",
        "</div>",
        text=inline,
        around=("<div class='ufaq-faq-list'>", "</div>"),
    ),
    "navigation_frames": each(
        "<p><b>Exercise {number}:</b> {problem}</p>",
        "<div class='NavFrame'><div class='NavHead'>Solution <a class='NavToggle' href='#'>[show]</a></div>"
        "<div class='NavContent'><p>{solution}</p></div></div>",
        text=inline,
    ),
    "notebook": each(
        "<div class='jp-Cell jp-MarkdownCell'><div class='jp-Cell-inputWrapper'><div class='jp-InputPrompt'></div>"
        "<div class='jp-RenderedMarkdown'><h3 id='E-{number}'>Exercise {number}<a class='anchor-link' "
        "href='#E-{number}'>¶</a></h3>{problem}</div></div></div>",
        "<div class='jp-Cell jp-CodeCell'><div class='jp-InputPrompt'>In [{number}]:</div><pre># your code here</pre>"
        "</div><div class='jp-Cell jp-MarkdownCell'><div class='jp-InputPrompt'></div><div class="
        "'jp-RenderedMarkdown'><p><strong>Solution</strong></p>{solution}</div></div>",
    ),
    "formulas_twice": each(
        "<div class='item'><p><strong>Problem {number}</strong></p><p>{problem}</p>",
        "<p><strong>Solution</strong></p><p>{solution}</p>",
        "</div>",
        text=katex,
    ),
    "stack_threads": stack_threads,
    "question_and_answer_columns": each(
        "<tr><td>{number}</td><td>{problem}</td>",
        "<td>{solution}</td>",
        "</tr>",
        without="<td></td>",
        text=inline,
        around=("<table><tr><th>No.</th><th>Q</th><th>A</th></tr>", "</table>"),
    ),
    "run_in_abbreviations": each(
        "<p><strong>Pb. {number}</strong> — {problem}</p>",
        "\n<p><strong>Sol. {number}</strong> — {solution}</p>",
        text=inline,
    ),
    "tab_panels": tab_panels,
    "pdf_lines": pdf_lines,
    "term_cards": each(
        "<div class='SetPageTerm'><div class='SetPageTerm-side'><a class='SetPageTerm-wordText'><span class='TermText "
        "lang-en'>{problem}</span></a></div>",
        "<div class='SetPageTerm-side'><a class='SetPageTerm-definitionText'><span class='TermText lang-en'>"
        "{solution}</span></a></div>",
        "</div>",
        text=inline,
    ),
    "quiz_review": each(
        "<div id='q-{number}' class='que shortanswer deferredfeedback correct'><div class='info'><h3 class='no'>"
        "Question <span class='qno'>{number}</span></h3><div class='state'>Correct</div><div class='grade'>Mark 1.00 "
        "out of 1.00</div><div class='questionflag'>Flag question</div></div><div class='content'><div class="
        "'formulation clearfix'><h4 class='accesshide'>Question text</h4><div class='qtext'>{problem}</div></div>",
        "<div class='outcome'><h4 class='accesshide'>Feedback</h4><div class='feedback'><div class='specificfeedback'>"
        "Your answer is correct.</div><div class='generalfeedback'>{solution}</div></div></div>",
        "</div></div>",
    ),
    "german": each(
        "<h3>Aufgabe {number}</h3>{problem}",
        "<details><summary>Lösung anzeigen</summary>{solution}</details>",
    ),
    "french": each(
        "<p><strong>Exercice {number}.</strong> {problem}</p>",
        "<p><em>Corrigé.</em> {solution}</p>",
        text=inline,
    ),
    "spanish": each(
        "<p>Problema {number}: {problem}</p>",
        "<a href='#' onclick='ver({number})'>Ver solución</a><div id='s{number}'>{solution}</div>",
        text=inline,
    ),
    "preformatted": preformatted,
    "several_solutions": several_solutions,
    "nested_answers": each(
        "<li>{problem}",
        "<ul><li><i>Answer:</i> {solution}</li></ul>",
        "</li>",
        text=inline,
        around=("<ol>", "</ol>"),
    ),
}


def saved_mathjax(text: str) -> str:
    """Inline HTML as a browser saves it after MathJax 2: preview, rendered spans, MathML for readers, TeX source."""
    pieces, last = [], 0
    for found in NUMBERS.finditer(text):
        formula = html.escape(found[0])
        pieces += [
            inline(text[last : found.start()]),
            "<span class='MathJax_Preview' style='color: inherit;'></span><span class='MathJax' role="
            f"'presentation'><nobr aria-hidden='true'><span class='math'>{formula}</span></nobr><span class="
            f"'MJX_Assistive_MathML'><math><mn>{formula}</mn></math></span></span>"
            f"<script type='math/tex'>{found[0]}</script>",
        ]
        last = found.end()
    return "".join([*pieces, inline(text[last:])])


def formula_images(text: str) -> str:
    """Inline HTML whose formulas are pictures made from TeX."""
    pieces, last = [], 0
    for found in NUMBERS.finditer(text):
        formula = html.escape(found[0])
        pieces += [
            inline(text[last : found.start()]),
            f"<img src='//latex.example.org/4/{len(pieces)}.png' class='latex' alt='${formula}$' "
            "style='vertical-align: 0px' width='12' height='9'>",
        ]
        last = found.end()
    return "".join([*pieces, inline(text[last:])])


def posts_without_words(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A message board that calls nothing an answer: a post, then replies with points."""
    threads = []
    for one in exercises:
        replies = [(rng.randint(9, 30), one.solution)] if one.solution else []
        replies += [
            (rng.randint(1, 8), wrong(exercises, one, rng))
            for _ in range(rng.randint(0, 1) if replies else 0)
        ]
        posts = "".join(
            f"<div class='thing reply'><p class='tagline'><a class='author' href='/u'>{rng.choice(NAMES)}</a> "
            f"<span class='score'>{points} points</span> <time>3 years ago</time></p><div class='usertext-body'>"
            f"{paragraphs(text)}</div><ul class='flat-list buttons'><li><a href='/p'>permalink</a></li></ul></div>"
            for points, text in replies
        )
        threads.append(
            "<div class='thing link'><p class='title'><a href='/t'>Can someone help me with this one?</a></p><p class="
            f"'tagline'>submitted 3 years ago by <a class='author' href='/u'>{rng.choice(NAMES)}</a></p><div class="
            f"'usertext-body'>{paragraphs(one.problem)}</div></div><div class='replies'>{posts}</div>"
        )
    return "<hr>".join(threads)


def worked_in_steps(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A homework service: every sentence or two of the solution is a step with a head of its own."""
    boxes = []
    for one in exercises:
        steps = re.findall(r"<p>.*?</p>", paragraphs(one.solution or ""), re.DOTALL)
        written = "".join(
            f"<div class='step'><div class='step-number'>Step {i} of {len(steps)}</div>{step}</div>"
            for i, step in enumerate(steps, start=1)
        )
        boxes.append(
            f"<div class='problem-container'><h2>Chapter 3, Problem {one.number}E</h2>{paragraphs(one.problem)}</div>"
            + (
                f"<div class='solution-container'><h3>Step-by-step solution</h3>{written}</div>"
                if written
                else ""
            )
        )
    return "\n".join(boxes)


def footnotes(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Solutions as footnotes of a Markdown converter."""
    asked = "\n".join(
        f"<p>{one.number}. {inline(one.problem)}"
        + (
            f"<sup id='fnref:{one.number}'><a href='#fn:{one.number}' rel='footnote'>{one.number}</a></sup>"
            if one.solution
            else ""
        )
        + "</p>"
        for one in exercises
    )
    notes = "\n".join(
        f"<li id='fn:{one.number}' value='{one.number}'><p>{inline(one.solution)} <a href='#fnref:{one.number}' class="
        "'reversefootnote'>↩</a></p></li>"
        for one in exercises
        if one.solution
    )
    return f"{asked}\n<div class='footnotes'><hr><ol>{notes}</ol></div>"


FOURTH: dict[str, Style] = {
    "admonitions": each(
        "<div class='exercise admonition' id='ex-{number}'><p class='admonition-title'><span class='caption-number'>"
        "Exercise {number} </span></p><section id='exercise-content'>{problem}</section></div>",
        "<div class='solution dropdown admonition'><p class='admonition-title'>Solution to<a class='reference' "
        "href='#ex-{number}'> Exercise {number}</a></p><section id='solution-content'>{solution}</section></div>",
    ),
    "theorem_boxes": each(
        "<div class='exercise'><p><span id='exr:{number}' class='exercise'><strong>Exercise 4.{number} </strong></span>"
        "{problem}</p></div>",
        "<div class='solution'><p><span class='solution'><em>Solution</em>. </span>{solution}</p></div>",
        text=inline,
    ),
    "saved_mathjax": each(
        "<h4>Problem {number}</h4><p>{problem}</p>", "<h4>Answer</h4><p>{solution}</p>", text=saved_mathjax
    ),
    "formula_images": each(
        "<h2><span class='mw-headline'>Problem {number}</span></h2><p>{problem}</p>",
        "<h2><span class='mw-headline'>Solution</span></h2><p>{solution}</p>",
        text=formula_images,
    ),
    "posts_without_words": posts_without_words,
    "worked_in_steps": worked_in_steps,
    "flat_accordion": each(
        "<button class='accordion'>{problem}</button>",
        "<div class='panel'><p>{solution}</p></div>",
        without="<div class='panel'></div>",
        text=inline,
    ),
    "details_as_questions": each(
        "<details><summary>{problem}</summary>",
        "<p>{solution}</p><p><small>Updated last week.</small></p>",
        "</details>",
        text=inline,
    ),
    "italian": each("<h4>Esercizio n. {number}</h4>{problem}", "<h5>Svolgimento</h5>{solution}"),
    "chinese": each("<p><b>例题 {number}</b> {problem}</p>", "<p><b>解:</b>{solution}</p>", text=inline),
    "hidden_headings": each(
        "<div class='post'><p><b>P{number}.</b> {problem}</p>",
        "<div class='hide-heading faux-link'>Click to reveal hidden text</div>"
        "<div class='hide-content'>{solution}</div>",
        "</div>",
        text=inline,
    ),
    "mark_scheme": each(
        "<tr><td><b>{number}</b></td><td>{problem}</td><td>[3]</td></tr>",
        "<tr class='scheme'><td>MS</td><td>{solution}</td><td></td></tr>",
        text=inline,
        around=("<table class='paper'><tr><th>Question</th><th></th><th>Marks</th></tr>", "</table>"),
    ),
    "footnotes": footnotes,
    "dialogue": each("<p><b>Student:</b> {problem}</p>", "<p><b>Tutor:</b> {solution}</p>", text=inline),
    "same_paragraph": each(
        "<p><i>{number}.</i> {problem}", " <b>Solution:</b> {solution}", "</p>", text=inline
    ),
    "exam_abbreviations": each("<p>Q.{number} {problem}", "<br>Ans: {solution}", "</p>", text=inline),
}
