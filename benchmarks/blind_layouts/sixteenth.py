"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 16."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_TOKEN = re.compile(
    r"(?P<formula>\$\$.+?\$\$|\\\[.+?\\\]|\\\(.+?\\\)|\$(?:(?!!\[|\n\s*\n)[^$])+\$)"
    r"|!\[(?P<alt>[^\]]*)\]\((?P<src>[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)"
    r"|(?P<gap>\n[ \t]*\n\s*)",
    re.S,
)
_Answer = tuple[str, int, bool]
_NAMES = ("Amira K.", "T. Okafor", "Jonas Lindqvist", "Priya S.", "M. Duarte", "Helen Wu", "Rafa G.")
_USERS = ("quietlemma", "sam_1987", "mathgeek42", "notaprof", "ioana.p", "BlueKettle", "dk_physics")
_TOPICS = ("Algebra", "Mechanics", "Number theory", "Geometry", "Probability", "Calculus", "Mixed practice")
_MONTHS = ("January", "February", "March", "April", "May", "September", "October", "November")
_GUESSES = (
    "I think you should just plug in small numbers and see what pattern comes out.",
    "Not sure, but I got 42 with my calculator. Can someone check?",
    "Isn't it simply one half by symmetry? At least that is what I would write.",
    "You can look at chapter 3 of your book, there is a very similar one with the result 17.",
)


def _paragraphs(text: str, br: bool = False) -> list[str]:
    """The paragraphs of a text as escaped HTML without their tags."""
    parts, position, text, newline = [""], 0, text.strip(), "<br>\n" if br else "\n"
    for match in _TOKEN.finditer(text):
        parts[-1] += html.escape(text[position : match.start()], quote=False).replace("\n", newline)
        position = match.end()
        if match["gap"] is not None:
            parts.append("")
        elif match["formula"] is not None:
            parts[-1] += html.escape(match["formula"], quote=False)
        else:
            parts[-1] += f'<img src="{html.escape(match["src"])}" alt="{html.escape(match["alt"])}">'
    parts[-1] += html.escape(text[position:], quote=False).replace("\n", newline)
    return [part for part in parts if part.strip()]


def _ps(text: str, lead: str = "", br: bool = False) -> str:
    """A text as <p> elements, the first one opened by a label."""
    first, *rest = _paragraphs(text, br) or [""]
    return "\n".join([f"<p>{lead}{first}</p>"] + [f"<p>{part}</p>" for part in rest])


def _cell(text: str) -> str:
    """A text for a cell or list item: bare where it is one paragraph."""
    parts = _paragraphs(text)
    return parts[0] if len(parts) == 1 else "\n".join(f"<p>{part}</p>" for part in parts)


def _date(rng: random.Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(_MONTHS)} {rng.randint(2009, 2024)}"


def _answers(exercises: Sequence[Gold], gold: Gold, rng: random.Random, chance: float) -> list[_Answer]:
    """A thread's answers as (text, votes, accepted): the solution among one to three wrong ones."""
    if gold.solution is None:
        return []
    accepted, top = rng.random() < chance, rng.randint(9, 40)
    foreign = list(dict.fromkeys(e.solution for e in exercises if e.solution and e.solution != gold.solution))
    wrong = [*rng.sample(foreign, min(len(foreign), rng.randint(0, 2))), rng.choice(_GUESSES)]
    answers = [(text, rng.randint(-2, top - 3), False) for text in wrong]
    answers.append((gold.solution, rng.randint(0, top) if accepted else top, accepted))
    rng.shuffle(answers)
    return answers


def heading_mkdocs_notes(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lecture notes built with MkDocs Material: permalink headings for exercise and solution."""
    topic, word = rng.choice(_TOPICS), rng.choice(("Exercise", "Problem"))
    link = '<a class="headerlink" href="#{0}" title="Permanent link">&para;</a>'
    out = f"""<div class="md-content"><article class="md-content__inner md-typeset">
<a href="edit/sheet.md" title="Edit this page" class="md-content__button md-icon"></a>
<h1 id="sheet">{topic}: exercise sheet{link.format("sheet")}</h1>
<p><em>Try every exercise on paper before you read on.</em></p>"""
    for e in exercises:
        out += f'\n<h2 id="e{e.number}">{word} {e.number}{link.format(f"e{e.number}")}</h2>' + _ps(e.problem)
        if e.solution is not None:
            out += f'\n<h3 id="s{e.number}">Solution{link.format(f"s{e.number}")}</h3>\n' + _ps(e.solution)
    return f'{out}\n<hr><p class="md-source-file">Last update: {_date(rng)}</p></article></div>'


def heading_potw_archive(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Problem-of-the-week archive on WordPress: block headings, solver credits, share links."""
    label = rng.choice(("Our solution", "Published solution", "Solution"))
    out = f"""<div class="entry-content wp-block-post-content is-layout-flow">
<p class="crumbs">Archive &raquo; Autumn season {rng.randint(2010, 2023)}</p>"""
    for e in exercises:
        out += f"""
<h2 class="wp-block-heading">Problem of the Week #{e.number}</h2>
<p class="potw-meta has-small-font-size"><time>Posted {_date(rng)}</time>
<span class="cat-links">in <a href="/category/potw/">{rng.choice(_TOPICS)}</a></span></p>
<div class="wp-block-group potw-statement">{_ps(e.problem)}</div>"""
        if e.solution is not None:
            out += f"""
<h3 class="wp-block-heading">{label}</h3>
<div class="wp-block-group potw-solution">{_ps(e.solution)}</div>
<h4 class="wp-block-heading">Correct solvers</h4>
<p class="potw-solvers">{", ".join(rng.sample(_NAMES, rng.randint(2, 4)))}</p>"""
        out += """\n<div class="sharedaddy"><a href="?share=x">Tweet</a> <a href="mailto:?">Email</a></div>
<hr class="wp-block-separator has-alpha-channel-opacity">"""
    return out + "\n</div>"


def dl_question_bank(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question bank: each item a description list with metadata beside question and model answer."""
    out = f"""<div class="container" id="qbank"><p class="text-muted">Showing {len(exercises)} items &middot;
<a href="?export=csv">Export CSV</a></p>"""
    for e in exercises:
        answer = "" if e.solution is None else f"\n<dt>Model answer</dt>\n<dd>{_cell(e.solution)}</dd>"
        out += f"""
<dl class="item-record" id="item-{e.number}">
<dt>Item</dt><dd>{e.number}</dd>
<dt>Topic</dt><dd><a href="/topics/{rng.randint(2, 90)}">{rng.choice(_TOPICS)}</a></dd>
<dt>Level</dt><dd>{rng.choice(("Foundation", "Higher", "AS", "A2"))}</dd>
<dt>Question</dt><dd>{_cell(e.problem)}</dd>
<dt>Marks</dt><dd>{rng.randint(2, 9)}</dd>{answer}
<dt>Last reviewed</dt><dd>{_date(rng)} by {rng.choice(_NAMES)}</dd></dl>"""
    return out + "\n</div>"


def dl_drupal_fields(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Drupal nodes of a school portal: labelled fields for task, solution, grade and keywords."""
    task, answer = rng.choice((("Problem", "Solution"), ("Task", "Worked solution"), ("Question", "Answer")))

    def field(name: str, label: str, body: str) -> str:
        return f"""
<div class="field field--name-field-{name} field--type-text-long field--label-above">
<div class="field__label">{label}</div>
<div class="clearfix text-formatted field__item">{body}</div></div>"""

    out = '<div class="views-element-container"><div class="view view-exercises view-display-id-page_1">'
    for e in exercises:
        node = rng.randint(1000, 9999)
        out += f"""
<div class="views-row"><article about="/node/{node}" class="node node--type-exercise node--view-mode-full">
<h2 class="node__title"><a href="/node/{node}" rel="bookmark"><span>No. {e.number}</span></a></h2>
<div class="node__content">"""
        out += field("grade", "Grade", f"Year {rng.randint(7, 13)}") + field("task", task, _ps(e.problem))
        if e.solution is not None:
            out += field("solution", answer, _ps(e.solution))
        out += field("keywords", "Keywords", f'<a href="/tags/{node % 40}">{rng.choice(_TOPICS)}</a>')
        out += """\n<p class="links"><a href="/login">Log in</a> to comment</p></div></article></div>"""
    return out + '\n<nav class="pager"><a href="?page=1">Next &rsaquo;</a></nav></div></div>'


def table_worksheet_rows(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Worksheet as one table: a row an exercise, columns for number, task, points and solution."""
    heads = rng.choice((("No.", "Task", "Points", "Solution"), ("#", "Question", "Marks", "Answer")))
    out = f"""<h2>Worksheet {rng.randint(2, 30)}: {rng.choice(_TOPICS)}</h2>
<p class="print"><a href="javascript:window.print()">Print this sheet</a> | Name: ________________</p>
<div class="table-responsive"><table class="table table-bordered worksheet">
<thead><tr>{"".join(f'<th scope="col">{head}</th>' for head in heads)}</tr></thead>
<tbody>"""
    for e in exercises:
        out += f"""
<tr><td class="num">{e.number}</td><td class="task">{_cell(e.problem)}</td><td>{rng.randint(1, 6)}</td>
<td class="sol">{"&ndash;" if e.solution is None else _cell(e.solution)}</td></tr>"""
    return f"{out}\n</tbody></table></div>\n<p>Prepared by {rng.choice(_NAMES)}, {_date(rng)}</p>"


def table_wiki_boxes(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Wiki course page: a wikitable for each exercise, with row headers for statement and solution."""
    given = rng.choice(("Statement", "Problem", "Exercise text"))
    out = """<div id="mw-content-text" class="mw-body-content"><div class="mw-parser-output">
<p>These exercises belong to the <a href="/wiki/Course" title="Course">course page</a>.</p>"""
    for e in exercises:
        out += f"""
<table class="wikitable" style="width:100%">
<caption>Exercise {e.number} <span class="mw-editsection">[<a href="?action=edit">edit</a>]</span></caption>
<tbody><tr><th scope="row">Difficulty</th><td>{"&#9733;" * rng.randint(1, 4)}</td></tr>
<tr><th scope="row">{given}</th><td>{_cell(e.problem)}</td></tr>"""
        if e.solution is not None:
            out += f'\n<tr><th scope="row">Solution</th><td>{_cell(e.solution)}</td></tr>'
        out += f'\n<tr><th scope="row">Contributor</th><td>{rng.choice(_NAMES)}</td></tr>\n</tbody></table>'
    return out + '\n</div></div>\n<div id="catlinks">Category: <a href="/wiki/Category:E">Exercises</a></div>'


def forum_q2a_selected(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question2Answer threads: the best answer is marked, else the one with the most votes counts."""

    def votes(count: int) -> str:
        return f"""<div class="qa-voting qa-voting-net">
<span class="qa-netvote-count-data">{count:+d}</span><span class="qa-netvote-count-pad"> votes</span></div>"""

    def meta(kind: str, verb: str) -> str:
        return f"""<span class="qa-{kind}-item-meta">{verb} <time>{_date(rng)}</time> by
<a href="/user/{rng.randint(1, 900)}" class="qa-user-link">{rng.choice(_USERS)}</a>
<span class="qa-user-points">({rng.randint(20, 9000)} points)</span></span>"""

    out = '<div class="qa-main">'
    for e in exercises:
        out += f"""
<div class="qa-main-heading"><h1><a href="/{e.number}">Question {e.number}</a></h1></div>
<div class="qa-q-view" id="q{e.number}">{votes(rng.randint(0, 6))}<div class="qa-q-view-main">
<div class="qa-q-view-content qa-post-content">{_ps(e.problem, br=True)}</div>
<a class="qa-tag-link" href="/tag/a">{rng.choice(_TOPICS).lower()}</a> {meta("q", "asked")}</div></div>"""
        answers = _answers(exercises, e, rng, 0.6)
        out += f'\n<div class="qa-part-a-list"><h2>{len(answers)} Answers</h2><div class="qa-a-list">'
        for text, count, best in answers:
            out += f"""
<div class="qa-a-list-item{" qa-a-list-item-selected" if best else ""}">{votes(count)}
<div class="qa-a-item-main">{'<div class="qa-a-selected-text">Best answer</div>' if best else ""}
<div class="qa-a-item-content qa-post-content">{_ps(text, br=True)}</div>
{meta("a", "answered")}</div></div>"""
        out += "</div></div>"
    return out + "\n</div>"


def forum_reddit_points(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Old reddit homework threads: comments with points, the highest-scored one is the solution."""
    buttons = '<ul class="buttons"><li><a href="#">permalink</a></li><li><a href="#">save</a></li></ul>'
    out = ""
    for e in exercises:
        out += f"""
<div class="content" role="main"><div class="thing link self" id="thing_t3_{e.number}">
<p class="title"><span class="linkflairlabel">{rng.choice(_TOPICS)}</span>
<a class="title" href="/r/homework/{e.number}/">[Exercise {e.number}] Need help with this</a></p>
<div class="usertext-body"><div class="md">{_ps(e.problem)}</div></div>{buttons}</div>"""
        answers = _answers(exercises, e, rng, 0)
        out += f'\n<div class="commentarea"><div class="panestack-title">all {len(answers)} comments</div>'
        for text, points, _ in answers:
            out += f"""
<div class="thing comment noncollapsed"><div class="entry unvoted"><p class="tagline">
<a href="/user/{rng.randint(1, 900)}" class="author">{rng.choice(_USERS)}</a>
<span class="score unvoted" title="{points}">{points} point{"" if points == 1 else "s"}</span>
<time>{rng.randint(2, 9)} years ago</time></p>
<div class="usertext-body"><div class="md">{_ps(text)}</div></div>{buttons}</div></div>"""
        out += "\n</div></div>"
    return out.strip()


def end_chapter_lists(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Textbook companion chapter: numbered list of exercises, then a numbered list of answers."""
    head = rng.choice(("Answers to exercises", "Answers to selected exercises", "Solutions"))
    tasks = "\n".join(f'<li value="{e.number}">{_cell(e.problem)}</li>' for e in exercises)
    solved = [(e.number, e.solution) for e in exercises if e.solution is not None]
    key = "\n".join(f'<li value="{number}">{_cell(solution)}</li>' for number, solution in solved)
    return f"""<section id="exercises"><h2>Exercises for chapter {rng.randint(2, 14)}</h2>
<ol class="exercises">{tasks}</ol></section>
<p class="navlinks"><a href="ch1.html">Previous</a> | <a href="toc.html">Contents</a></p>
<section id="answers"><h2>{head}</h2>
<ol class="answers">{key}</ol></section>
<address>Comments to {rng.choice(_NAMES)}. {_date(rng)}</address>"""


def end_pretext_backmatter(exercises: Sequence[Gold], rng: random.Random) -> str:
    """PreTeXt book: exercise articles, then an appendix with the solutions under the same numbers."""

    def article(kind: str, number: int, text: str) -> str:
        body = "\n".join(f'<div class="para">{part}</div>' for part in _paragraphs(text))
        return f"""
<article class="{kind} exercise-like" id="{kind}-{number}">
<h4 class="heading"><span class="codenumber">{number}<span class="period">.</span></span></h4>
{body}
<div class="autopermalink"><a href="#{kind}-{number}" title="Copy permalink">&#128279;</a></div></article>"""

    out = f"""<div class="ptx-content"><section class="exercises">
<h3 class="heading"><span class="type">Exercises</span> <b>{rng.randint(1, 9)}.4</b></h3>"""
    out += "".join(article("exercise", e.number, e.problem) for e in exercises)
    out += """</section>
<section class="solutions backmatter"><h2 class="heading"><span class="type">Appendix</span>
<span class="codenumber">B</span> <span class="title">Solutions to Exercises</span></h2>"""
    out += "".join(article("solution", e.number, e.solution) for e in exercises if e.solution is not None)
    return out + "\n</section></div>"


def toggle_quarto_callout(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Quarto site: theorem-like exercises with the solution in a collapsed callout."""
    title = rng.choice(("Solution", "Show solution", "Click for the solution"))
    out = '<main class="content" id="quarto-document-content">'
    for e in exercises:
        lead = f'<span class="theorem-title"><strong>Exercise {e.number}</strong></span> '
        out += f'\n<div id="exr-{e.number}" class="theorem exercise">\n{_ps(e.problem, lead)}\n</div>'
        if e.solution is not None:
            out += f"""
<div class="callout callout-style-default callout-tip callout-titled">
<div class="callout-header d-flex align-content-center collapsed" data-bs-toggle="collapse"
 data-bs-target=".callout-{e.number}-contents" aria-expanded="false" aria-label="Toggle callout">
<div class="callout-title-container flex-fill">{title}</div>
<div class="callout-btn-toggle float-end"><i class="callout-toggle"></i></div></div>
<div id="callout-{e.number}" class="callout-{e.number}-contents callout-collapse collapse">
<div class="callout-body-container callout-body">{_ps(e.solution)}</div></div></div>"""
    return out + '\n<div class="toc-actions"><a href="/issues/new">Report an issue</a></div>\n</main>'


def toggle_spoiler_shortcode(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Tutoring blog with spoiler shortcodes: a hint at times, then the hidden solution."""
    answer = rng.choice(("Show answer", "Reveal solution", "Solution (click to open)"))
    hints = ("Draw a sketch first.", "Which quantities stay the same?", "Start from the definition.")

    def spoiler(title: str, body: str) -> str:
        return f"""
<div class="su-spoiler su-spoiler-style-fancy su-spoiler-icon-plus su-spoiler-closed">
<div class="su-spoiler-title" tabindex="0" role="button"><span class="su-spoiler-icon"></span>{title}</div>
<div class="su-spoiler-content su-u-clearfix su-u-trim">{body}</div></div>"""

    out = f'<div class="entry-content">\n<p>Welcome back! Here is the practice set of {_date(rng)}.</p>'
    for e in exercises:
        out += f"""
<div class="practice-box"><p class="practice-title"><strong>Practice problem {e.number}</strong></p>
{_ps(e.problem)}</div>{spoiler("Hint", rng.choice(hints)) if rng.random() < 0.4 else ""}"""
        if e.solution is not None:
            out += spoiler(answer, _ps(e.solution))
    return out + '\n<p class="newsletter"><a href="/subscribe">Get new problems by email</a></p></div>'


def inline_blog_questions(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Exam-preparation blog: bold 'Q3.' and 'Ans:' labels in plain paragraphs, links between them."""
    question, label = rng.choice(("Q{0}.", "Q.{0}", "Question {0}:")), rng.choice(("Ans:", "Ans.", "Answer:"))
    out = '<div class="post-body entry-content">'
    for count, e in enumerate(exercises):
        out += "\n" + _ps(e.problem, f"<strong>{question.format(e.number)}</strong> ")
        if e.solution is not None:
            out += "\n" + _ps(e.solution, f"<strong>{label}</strong> ")
        if count % 3 == 2:
            out += f"""
<p style="text-align:center"><a href="/notes"><b>Also read: {rng.choice(_TOPICS)} notes PDF</b></a></p>
<ins class="adsbygoogle" style="display:block"></ins>"""
    return f'{out}\n<div class="post-footer">Posted by {rng.choice(_NAMES)} on {_date(rng)}</div></div>'


def inline_list_examples(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Handout as a plain list: each item opens with 'Example 3.' and an italic 'Solution.' follows."""
    word = rng.choice(("Example", "Exercise", "Problem"))
    out = f'<p>Handout, {_date(rng)}. Please bring it to the next tutorial.</p>\n<ul class="handout">'
    for e in exercises:
        out += "\n<li>" + _ps(e.problem, f"<b>{word} {e.number}.</b> ")
        if e.solution is not None:
            out += "\n" + _ps(e.solution, "<i>Solution.</i> ")
        out += "</li>"
    return out + '\n</ul>\n<p><a href="handout.pdf">Download as PDF</a></p>'


LAYOUTS: dict[str, Style] = {
    "heading_mkdocs_notes": heading_mkdocs_notes,
    "heading_potw_archive": heading_potw_archive,
    "dl_question_bank": dl_question_bank,
    "dl_drupal_fields": dl_drupal_fields,
    "table_worksheet_rows": table_worksheet_rows,
    "table_wiki_boxes": table_wiki_boxes,
    "forum_q2a_selected": forum_q2a_selected,
    "forum_reddit_points": forum_reddit_points,
    "end_chapter_lists": end_chapter_lists,
    "end_pretext_backmatter": end_pretext_backmatter,
    "toggle_quarto_callout": toggle_quarto_callout,
    "toggle_spoiler_shortcode": toggle_spoiler_shortcode,
    "inline_blog_questions": inline_blog_questions,
    "inline_list_examples": inline_list_examples,
}
