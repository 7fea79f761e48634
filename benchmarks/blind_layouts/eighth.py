"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 8."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_FORMULA = re.compile(
    r"\$\$.+?\$\$|\\\(.+?\\\)|\\\[.+?\\\]|(?<!\\)\$(?:\\.|(?!\n[ \t]*\n)[^$\\])+\$", re.DOTALL
)
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)")
_HELD = re.compile("\x00(\\d+)\x00")
_PEOPLE = ("marta_k", "Old Tom", "quietowl", "j.ferreira", "Nina92", "prof_hale", "sumit-r", "bluekite")
_DATES = ("12 Mar 2019", "3 Nov 2021", "27 Jan 2016", "8 Sep 2023", "19 Jun 2020", "30 Apr 2014")
_GUESSES = (
    "I think you just add everything up and divide by two, so it should be about half of what you got.",
    "Isn't it simply zero? By symmetry everything cancels, no need to calculate.",
    "My calculator says 42 but I may have typed something wrong.",
)
_HINTS = ("Write down what is given and what is asked for.", "Try a smaller case first.")


def _paragraphs(text: str, newline: str = "<br>\n", image: str = "") -> list[str]:
    """Returns the paragraphs of a text as escaped HTML, formulas whole and images as tags."""
    held: list[str] = []

    def hold(piece: str) -> str:
        held.append(piece)
        return f"\x00{len(held) - 1}\x00"

    def picture(match: re.Match[str]) -> str:
        return hold(f'<img src="{html.escape(match[2])}" alt="{html.escape(match[1])}"{image}>')

    text = _FORMULA.sub(lambda match: hold(html.escape(match[0], quote=False)), text.strip())
    text = _IMAGE.sub(picture, text)
    parts = re.split(r"\n[ \t]*\n\s*", html.escape(text, quote=False))
    return [_HELD.sub(lambda match: held[int(match[1])], part.replace("\n", newline)) for part in parts]


def _p(text: str, lead: str = "", attributes: str = "", image: str = "") -> str:
    """Returns a text as <p> elements, the first of which starts with a lead."""
    first, *rest = _paragraphs(text, image=image)
    return "\n".join(f"<p{attributes}>{part}</p>" for part in (lead + first, *rest))


def _br(text: str, newline: str = "<br>\n") -> str:
    """Returns a text as one run in which paragraphs are set off by two breaks."""
    return f"{newline}{newline}".join(_paragraphs(text, newline))


def _wrong(exercises: Sequence[Gold], own: Gold, rng: random.Random) -> str:
    """Returns a wrong answer: the solution to another exercise or a guess."""
    others = [e.solution for e in exercises if e.solution and e.solution != own.solution]
    return rng.choice(others) if others and rng.random() < 0.6 else rng.choice(_GUESSES)


def heading_static_notes(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out a chapter of a static-site lecture book: a section a challenge, headings with anchors."""
    chapter = rng.randint(2, 9)
    out = [
        f'<section id="practice" class="level2"><h2 data-number="{chapter}.9">Practice</h2>',
        "<p>Work through these before moving on to the next chapter. Stars show the difficulty.</p>",
    ]
    for e in exercises:
        key = f"{chapter}.{e.number}"
        out.append(
            f'<section id="challenge-{e.number}" class="level3"><h3 class="anchored">Challenge {key} '
            f'<span class="stars">{"★" * rng.randint(1, 3)}</span>'
            f'<a class="anchorjs-link" href="#challenge-{e.number}" aria-label="Anchor">#</a></h3>'
        )
        out.append(_p(e.problem, image=' class="img-fluid"'))
        if e.solution is not None:
            out.append(f'<h4 id="walkthrough-{e.number}" class="anchored">Walkthrough</h4>')
            out.append(_p(e.solution, image=' class="img-fluid"'))
        out.append("</section>")
    out.append(
        '</section><nav class="page-navigation"><a href="ch-prev.html">← Previous chapter</a> '
        '<a href="ch-next.html">Next chapter →</a></nav>'
    )
    return "\n".join(out)


def heading_wiki_paper(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out a past paper on a wiki: numbered headings with edit links and a table of contents."""

    def edit(section: int) -> str:
        return (
            '<span class="mw-editsection"><span>[</span><a href="index.php?title=Paper&amp;action=edit'
            f'&amp;section={section}">edit</a><span>]</span></span>'
        )

    section = 0
    toc = "".join(
        f'<li class="toclevel-1"><a href="#Problem_{e.number}"><span class="tocnumber">{i}</span> '
        f'<span class="toctext">Problem {e.number}</span></a></li>'
        for i, e in enumerate(exercises, 1)
    )
    out = [
        '<div class="mw-parser-output">',
        f'<div id="toc" class="toc"><h2>Contents</h2><ul>{toc}</ul></div>',
    ]
    for e in exercises:
        section += 1
        out.append(
            f'<h2><span class="mw-headline" id="Problem_{e.number}">Problem {e.number}</span>'
            f"{edit(section)}</h2>"
        )
        out.append(_p(e.problem, image=' class="mw-file-element"'))
        if e.solution is not None:
            section += 1
            out.append(
                f'<h3><span class="mw-headline" id="Solution_{section}">Solution</span>{edit(section)}</h3>'
            )
            out.append(_p(e.solution, image=' class="mw-file-element"'))
    out.append(
        '<div class="catlinks"><a href="/wiki/Categories">Categories</a>: <a href="/wiki/C">Past '
        f'papers</a> | <a href="/wiki/Y">{rng.randint(1995, 2022)}</a></div></div>'
    )
    return "\n".join(out)


def dl_item_bank(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out records of an item bank: a description list of named fields for each item."""
    out = [f'<p class="result-count">Showing 1–{len(exercises)} of {rng.randint(60, 400)} items</p>']
    for e in exercises:
        fields = [
            ("Item", f"{e.number}"),
            ("Level", rng.choice(("basic", "intermediate", "advanced"))),
            ("Added", f"<time>{rng.choice(_DATES)}</time>"),
            ("Task", _p(e.problem)),
        ]
        if rng.random() < 0.25:
            fields.append(("Hint", f"<p>{rng.choice(_HINTS)}</p>"))
        if e.solution is not None:
            fields.append(("Sample solution", _p(e.solution)))
        fields.append(("Contributor", f'<a href="/people/{rng.randint(10, 99)}">{rng.choice(_PEOPLE)}</a>'))
        body = "\n".join(
            f'<dt class="col-sm-3">{name}</dt>\n<dd class="col-sm-9">{value}</dd>' for name, value in fields
        )
        out.append(
            f'<article class="record" id="item-{e.number}"><dl class="row">\n{body}\n</dl>'
            '<a class="btn" href="#">Add to my sheet</a> <a class="btn" href="#">Print</a></article>'
        )
    return "\n".join(out)


def dl_tutorial_sheet(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out a tutor's problem sheet: the question is the term and the reply its definition."""
    out = [
        f"<h2>Tutorial sheet {rng.randint(1, 10)}: questions and answers</h2>",
        f"<p><i>Last updated {rng.choice(_DATES)}. Please report mistakes by e-mail.</i></p>",
        '<dl class="qanda">',
    ]
    for e in exercises:
        out.append(f'<dt class="question" id="t{e.number}"><b>{e.number}.</b> {_br(e.problem)}</dt>')
        if e.solution is not None:
            out.append(f'<dd class="answer"><b>Answer.</b> {_br(e.solution)}</dd>')
    out.append('</dl>\n<hr>\n<p><a href="#top">Back to top</a> | <a href="../">Course home page</a></p>')
    return "\n".join(out)


def table_mark_scheme(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out an exam paper with its mark scheme: a row a question, columns with a header row."""
    rows, total = [], 0
    for e in exercises:
        marks = rng.randint(2, 12)
        total += marks
        answer = "" if e.solution is None else _br(e.solution, "<br />")
        rows.append(
            f'<tr><td class="num">{e.number}</td><td>{_br(e.problem, "<br />")}</td>'
            f'<td>{answer}</td><td class="marks">{marks}</td></tr>'
        )
    return (
        '<div class="table-responsive"><table class="table table-bordered">\n'
        "<caption>Paper with full mark scheme</caption>\n"
        '<thead><tr><th scope="col">No.</th><th scope="col">Question</th>'
        '<th scope="col">Model answer</th><th scope="col">Marks</th></tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + '\n</tbody>\n<tfoot><tr><td colspan="3">Total for paper</td>'
        f"<td>{total}</td></tr></tfoot></table></div>"
    )


def table_nineties_page(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out an old personal page: a coloured table for each problem, the label in the left cell."""
    colour = rng.choice(("#FFFFCC", "#E0F0FF", "#DDEEDD"))
    out = ['<center>Click <a href="index.htm">here</a> for the other problem pages.</center>']
    for e in exercises:
        out.append(f'<a name="p{e.number}"></a><table border="1" width="95%" cellpadding="6" align="center">')
        out.append(
            f'<tr bgcolor="{colour}"><td width="15%" valign="top"><b>Problem&nbsp;#{e.number}</b></td>'
            f"<td>{_br(e.problem)}</td></tr>"
        )
        if e.solution is not None:
            out.append(f'<tr><td valign="top"><b>Solution:</b></td><td>{_br(e.solution)}</td></tr>')
        out.append("</table><br>")
    out.append(f"<center><small>You are visitor no. {rng.randint(1000, 90000)}</small></center>")
    return "\n".join(out)


def forum_best_answer(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out question threads of Q&A software in which the asker has picked a best answer."""
    out = []
    for e in exercises:
        answers: list[tuple[str, bool]] = []
        if e.solution is not None:
            answers = [(_wrong(exercises, e, rng), False) for _ in range(rng.randint(0, 2))]
            answers.insert(rng.randint(0, len(answers)), (e.solution, True))
        count = f"{len(answers)} answer{'' if len(answers) == 1 else 's'}" if answers else "No answers yet"
        out.append(
            f'<div class="qa-part-q-view" id="q{e.number}"><h2>Question {e.number}</h2>'
            f'<div class="qa-voting"><span class="qa-netvote">{rng.randint(0, 9)}</span> votes</div>'
            f'<div class="qa-q-view-content"><div itemprop="text">{_p(e.problem)}</div></div>'
            '<ul class="qa-q-view-tag-list"><li><a href="/tag/homework">homework</a></li></ul>'
            f'<span class="qa-q-view-meta">asked {rng.choice(_DATES)} by <a href="/user">'
            f"{rng.choice(_PEOPLE)}</a></span></div>"
        )
        out.append(f'<div class="qa-part-a-list"><h3>{count}</h3>')
        for text, best in answers:
            mark = '<div class="qa-a-selected-text">✔ Best answer</div>' if best else ""
            extra = " qa-a-list-item-selected" if best else ""
            out.append(
                f'<div class="qa-a-list-item{extra}"><div class="qa-voting"><span class="qa-netvote">'
                f"{rng.randint(3, 15) if best else rng.randint(-3, 2)}</span> votes</div>{mark}"
                f'<div class="qa-a-item-content">{_p(text)}</div><span class="qa-a-meta">answered '
                f'{rng.choice(_DATES)} by <a href="/user">{rng.choice(_PEOPLE)}</a></span> '
                '<button type="button">comment</button></div>'
            )
        out.append("</div>")
    return "\n".join(out)


def forum_comment_scores(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out posts of a link-and-discussion site whose replies carry points, in order of time."""
    out = []
    for e in exercises:
        replies: list[tuple[int, str]] = []
        if e.solution is not None:
            replies = [(rng.randint(-6, 4), _wrong(exercises, e, rng)) for _ in range(rng.randint(1, 3))]
            replies.insert(rng.randint(0, len(replies)), (rng.randint(12, 90), e.solution))
        out.append(
            f'<article class="post" data-id="{e.number}"><header><span class="score">'
            f'{rng.randint(1, 40)} points</span> · posted by <a href="/u/x">{rng.choice(_PEOPLE)}</a> '
            f'{rng.randint(2, 11)} months ago</header><h2 class="title">Help with no. {e.number}</h2>'
        )
        out.append(f'<div class="md post-body">{_p(e.problem)}</div>')
        out.append(
            f'<footer><a href="#c">{len(replies)} replies</a> <a href="#s">share</a> '
            '<a href="#v">save</a> <a href="#r">report</a></footer>'
        )
        out.append(f'<section class="replies" aria-label="Replies to no. {e.number}">')
        for points, text in replies:
            out.append(
                f'<div class="reply"><p class="tagline"><a href="/u/y">{rng.choice(_PEOPLE)}</a> '
                f'<span class="score">{points} points</span></p>'
                f'<div class="md">{_p(text)}</div><p class="buttons"><a href="#">permalink</a> '
                '<a href="#">reply</a></p></div>'
            )
        if not replies:
            out.append('<p class="empty">Nobody has replied yet. Be the first!</p>')
        out.append("</section></article>")
    return "\n".join(out)


def end_textbook_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out an open textbook: a numbered list of exercises, then the answer key of the chapter."""
    part = f"{rng.randint(1, 12)}.{rng.randint(1, 6)}"
    out = [
        f'<section class="section-exercises"><h2>Section {part} Exercises</h2>',
        "<p>For the following exercises, show all your work.</p>",
    ]
    for e in exercises:
        out.append(
            f'<div data-type="exercise" id="fs-id{e.number}"><div data-type="problem">'
            f'<span class="os-number">{e.number}</span><span class="os-divider">. </span>'
            f'<div class="os-problem-container">{_p(e.problem)}</div></div></div>'
        )
    out.append(
        '</section>\n<div class="os-key-terms"><h2>Key Terms</h2><p>See the glossary.</p></div>'
        f'<section class="os-solutions"><h2>Answer Key</h2><h3>Section {part} Exercises</h3>'
    )
    for e in exercises:
        if e.solution is not None:
            out.append(
                f'<div data-type="solution"><a href="#fs-id{e.number}">{e.number}</a>'
                '<span class="os-divider">. </span>'
                f'<div class="os-solution-container">{_p(e.solution)}</div></div>'
            )
    out.append('</section><p class="citation"><a href="#cite">Citation/Attribution</a></p>')
    return "\n".join(out)


def end_module_links(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out a course module: exercises that link to solutions under a rule at the end of the page."""
    out = [f"<h3>Self-test</h3><p>Allow yourself about {rng.randint(3, 9) * 10} minutes.</p>"]
    for e in exercises:
        link = "" if e.solution is None else f' <a href="#s{e.number}"><i>(Go to Solution)</i></a>'
        out.append(
            f'<div class="exercise" id="e{e.number}"><p class="title"><b>Exercise '
            f"{e.number}</b>{link}</p>{_p(e.problem)}</div>"
        )
    out.append("<hr>\n<h3>Solutions to Exercises in this Module</h3>")
    for e in exercises:
        if e.solution is not None:
            out.append(
                f'<div class="solution" id="s{e.number}"><p class="title"><b>Solution to Exercise '
                f'{e.number}</b> <a href="#e{e.number}"><i>(Return to Exercise)</i></a></p>'
                f"{_p(e.solution)}</div>"
            )
    return "\n".join(out)


def toggle_collapse_cards(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out cards of a learning platform whose buttons open collapsed hints and solutions."""

    def button(target: str, label: str) -> str:
        return (
            f'<button class="btn btn-outline-primary" type="button" data-bs-toggle="collapse" '
            f'data-bs-target="#{target}" aria-expanded="false" aria-controls="{target}">{label}</button>'
        )

    out = []
    for e in exercises:
        out.append(
            f'<div class="card mb-4" id="task{e.number}"><div class="card-header">Task {e.number} '
            f'<span class="badge bg-secondary">{rng.choice(("Easy", "Hard"))}</span> '
            f'<small>{rng.randint(1, 5)} XP</small></div><div class="card-body">'
            f"{_p(e.problem, attributes=' class=card-text')}</div>"
        )
        hint = rng.choice(_HINTS) if rng.random() < 0.3 else ""
        out.append('<div class="card-footer">' + (button(f"hint{e.number}", "Need a hint?") if hint else ""))
        if e.solution is not None:
            out.append(button(f"sol{e.number}", "Show solution"))
        out.append('<a href="#" class="bookmark" title="Bookmark">☆</a></div>')
        if hint:
            out.append(f'<div class="collapse" id="hint{e.number}"><p>{hint}</p></div>')
        if e.solution is not None:
            out.append(
                f'<div class="collapse" id="sol{e.number}"><div class="card card-body">'
                f"{_p(e.solution)}</div></div>"
            )
        out.append("</div>")
    return "\n".join(out)


def toggle_coaching_links(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out a test-preparation page: script links under each question open a hidden answer."""
    out = ["<p>Directions: attempt each question before you look at the explanation.</p>"]
    for e in exercises:
        links = [
            f'<a href="#" class="lnk-report">Report</a> | <a href="/discuss/{rng.randint(100, 999)}">'
            "Discuss in forum</a>"
        ]
        if e.solution is not None:
            links.insert(0, f'<a href="javascript:void(0);" onclick="toggleAns({e.number})">View Answer</a>')
        out.append(
            f'<div class="bix-div"><div class="bix-td-qno">{e.number}.</div>'
            f'<div class="bix-td-qtxt">{_p(e.problem)}</div>'
            f'<div class="bix-links">{" | ".join(links)}</div>'
        )
        if e.solution is not None:
            out.append(
                f'<div id="ans{e.number}" class="bix-ans" style="display:none">'
                f"<p><strong>Answer &amp; Explanation</strong></p>\n{_p(e.solution)}</div>"
            )
        out.append("</div>")
    out.append('<p class="pager">1 <a href="?p=2">2</a> <a href="?p=3">3</a> <a href="?p=2">Next »</a></p>')
    out.append(
        "<script>function toggleAns(n){var d=document.getElementById('ans'+n).style;"
        "d.display=d.display=='none'?'block':'none';}</script>"
    )
    return "\n".join(out)


def inline_school_blog(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out a tuition blog's post: bold run-in labels 'Q.1' and 'Sol.' in plain paragraphs."""
    out = [
        f'<p class="post-meta">Posted on {rng.choice(_DATES)} by {rng.choice(_PEOPLE)} · '
        '<a href="#respond">Leave a comment</a></p>',
        "<p>Here are the important questions for the coming exam, as promised in class.</p>",
    ]
    for e in exercises:
        out.append(_p(e.problem, f"<strong>Q.{e.number}</strong> "))
        if e.solution is not None:
            out.append(_p(e.solution, "<strong>Sol.</strong> "))
    out.append('<div class="sharedaddy"><a href="#">Tweet</a> <a href="#">Share on Facebook</a></div>')
    return "\n".join(out)


def inline_seminar_notes(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lays out a seminar page: 'Example n (k points):' underlined and 'Detailed working:' in italics."""
    out = ['<div class="content clearfix">', f"<p>Week {rng.randint(1, 14)} – examples from the seminar</p>"]
    for e in exercises:
        points = rng.randint(1, 10)
        label = f"<u>Example {e.number}</u> ({points} point{'' if points == 1 else 's'}): "
        out.append(f"<p>{label}{_br(e.problem)}</p>")
        if e.solution is not None:
            out.append(f"<p><em>Detailed working:</em> {_br(e.solution)}</p>")
        out.append("<p>&nbsp;</p>")
    out.append('<p><a href="week.pdf">Download as PDF</a></p></div>')
    return "\n".join(out)


LAYOUTS: dict[str, Style] = {
    "heading_static_notes": heading_static_notes,
    "heading_wiki_paper": heading_wiki_paper,
    "dl_item_bank": dl_item_bank,
    "dl_tutorial_sheet": dl_tutorial_sheet,
    "table_mark_scheme": table_mark_scheme,
    "table_nineties_page": table_nineties_page,
    "forum_best_answer": forum_best_answer,
    "forum_comment_scores": forum_comment_scores,
    "end_textbook_key": end_textbook_key,
    "end_module_links": end_module_links,
    "toggle_collapse_cards": toggle_collapse_cards,
    "toggle_coaching_links": toggle_coaching_links,
    "inline_school_blog": inline_school_blog,
    "inline_seminar_notes": inline_seminar_notes,
}
