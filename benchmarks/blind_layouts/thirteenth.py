"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 13."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_TOKEN = re.compile(
    r"(?s)\\\$|!\[(?P<alt>[^\]]*)\]\((?P<src>(?:[^()\s]|\([^()\s]*\))+)\)"
    r"|(?P<math>\$\$.+?\$\$|\\\[.+?\\\]|\\\(.+?\\\)"
    r"|\\begin\{(?P<env>[a-zA-Z]+\*?)\}.*?\\end\{(?P=env)\}"
    r"|\$(?:[^$\\\n]|\\.|\n(?!\s*\n))+?\$)"
)
_USERS = (
    "mbrandt",
    "lena_k",
    "Prof. Okafor",
    "sigma77",
    "TomasR",
    "quietowl",
    "jdoe1998",
    "Anjali S",
    "h.fischer",
    "euler_fan",
    "Beatriz",
    "nightcoder",
    "KwameA",
    "pi_rat",
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TOPICS = ("Algebra", "Calculus", "Geometry", "Mechanics", "Probability", "Number theory", "Linear algebra")
_LEVELS = ("Easy", "Medium", "Hard")
_GUESSES = (
    "I think the answer is 12, but I only tried a few values.",
    "Have you tried to draw a picture first? That usually does it for me.",
    "Not sure, but I would guess that it follows from the definition.",
    "My calculator gives something close to 0.37, so I suppose it is that.",
    "Isn't this just the formula from the last lecture? Plug in and you are done.",
)


def _paragraphs(text: str, br: bool = False) -> list[str]:
    """The text's paragraphs as inline HTML; formulas stay whole, images become tags."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        src, alt = html.escape(found["src"] or ""), html.escape(found["alt"] or "")
        kept.append(f'<img src="{src}" alt="{alt}">' if src else html.escape(found[0], quote=False))
        return f"\0{len(kept) - 1}\0"

    masked = html.escape(_TOKEN.sub(keep, text), quote=False).strip()
    parts = re.split(r"\n[ \t]*\n\s*", masked)
    parts = [part.replace("\n", "<br />\n") for part in parts] if br else parts
    return [re.sub("\0([0-9]+)\0", lambda found: kept[int(found[1])], part) for part in parts]


def _ps(text: str, lead: str = "", tail: str = "", br: bool = False) -> str:
    """The text as <p> elements, with markup put before the first and after the last one's text."""
    paragraphs = _paragraphs(text, br)
    paragraphs[0] = lead + paragraphs[0]
    paragraphs[-1] += tail
    return "\n".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)


def _date(rng: random.Random) -> str:
    return f"{rng.choice(_MONTHS)} {rng.randint(1, 28)}, {rng.randint(2009, 2024)}"


def heading_sphinx_notes(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Sphinx-built lecture notes: a section an exercise, its solution a subsection with a pilcrow link."""

    def head(level: int, title: str, slug: str) -> str:
        return (
            f'<section id="{slug}">\n<h{level}>{title}<a class="headerlink" href="#{slug}" '
            f'title="Link to this heading">¶</a></h{level}>'
        )

    word = rng.choice(("Exercise", "Problem"))
    out = [
        f"""<div class="body" role="main">\n{head(1, f"{rng.randint(2, 9)}. {word}s", "sheet")}
<div class="admonition note"><p class="admonition-title">Note</p>
<p>Work on the sheet yourself before you read on.</p></div>"""
    ]
    for gold in exercises:
        out += [head(2, f"{word} {gold.number}", f"{word.lower()}-{gold.number}"), _ps(gold.problem)]
        if gold.solution is not None:
            out += [head(3, "Solution", f"solution-{gold.number}"), _ps(gold.solution), "</section>"]
        out.append("</section>")
    out.append(f"""</section></div>
<div class="related" role="navigation"><a href="a.html">Previous</a> | <a href="b.html">Next</a></div>
<footer>Last updated on {_date(rng)}. Created using
<a href="https://www.sphinx-doc.org/">Sphinx</a> 7.2.6.</footer>""")
    return "\n".join(out)


def heading_contest_wiki(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A MediaWiki contest page: table of contents, edit links, a signature, a stub box where unsolved."""

    def head(level: int, title: str, anchor: str) -> str:
        return f"""<h{level}><span class="mw-headline" id="{anchor}">{title}</span>
<span class="mw-editsection"><span class="mw-editsection-bracket">[</span><a href="?action=edit"
title="Edit section: {title}">edit</a><span class="mw-editsection-bracket">]</span></span></h{level}>"""

    toc = "\n".join(
        f'<li class="toclevel-1"><a href="#Problem_{g.number}"><span class="toctext">Problem '
        f"{g.number}</span></a></li>"
        for g in exercises
    )
    out = [
        f"""<div id="mw-content-text" lang="en" dir="ltr"><div class="mw-parser-output">
<div id="toc" class="toc"><div class="toctitle"><h2>Contents</h2></div><ul>{toc}</ul></div>"""
    ]
    for gold in exercises:
        out += [head(2, f"Problem {gold.number}", f"Problem_{gold.number}"), _ps(gold.problem)]
        if gold.solution is not None:
            out += [head(3, "Solution", f"Solution_{gold.number}"), _ps(gold.solution)]
            if rng.random() < 0.5:
                out.append(f'<p class="sig">~<a href="/wiki/User:X" class="new">{rng.choice(_USERS)}</a></p>')
        elif rng.random() < 0.5:
            out.append("""<table class="ambox"><tr><td><i>This problem needs a solution. If you have a
solution for it, please help us out by <a href="?action=edit">adding it</a>.</i></td></tr></table>""")
    out += [
        head(2, "See also", "See_also"),
        """<ul><li><a href="/wiki/Past_papers">Past papers</a></li>
<li><a href="/wiki/Answer_Key">Answer Key</a></li></ul>\n</div></div>""",
    ]
    return "\n".join(out)


def dl_bank_record(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A question bank's record view: a Bootstrap description list of the record's fields."""
    ask = rng.choice(("Question text", "Question", "Stem"))
    reply = rng.choice(("Worked solution", "Model answer", "Solution"))
    out = [f'<div id="question-bank"><p class="lead">{len(exercises)} records found. Sorted by number.</p>']
    for gold in exercises:
        level = f'<span class="badge bg-secondary">{rng.choice(_LEVELS)}</span>'
        fields = [
            ("Question no.", str(gold.number)),
            ("Topic", rng.choice(_TOPICS)),
            ("Difficulty", level),
            (ask, _ps(gold.problem)),
        ]
        if gold.solution is not None:
            fields.append((reply, _ps(gold.solution)))
        fields += [("Marks", str(rng.randint(1, 8))), ("Author", rng.choice(_USERS)), ("Saved", _date(rng))]
        rows = "\n".join(
            f'<dt class="col-sm-3">{name}</dt>\n<dd class="col-sm-9">{value}</dd>' for name, value in fields
        )
        out.append(f"""<div class="card mb-4" id="rec-{gold.number}"><div class="card-body">
<dl class="row">\n{rows}\n</dl>
<a class="btn" href="#">Add to test</a> <a class="btn" href="#">Report an error</a></div></div>""")
    return "\n".join([*out, "</div>"])


def dl_drupal_fields(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A Drupal problem archive: a node an exercise, its parts fields with a label above or inline."""

    def field(name: str, label: str, body: str, place: str = "inline") -> str:
        return f"""<div class="field field--name-field-{name} field--type-text-long field--label-{place}">
<div class="field__label">{label}</div>\n<div class="field__item">{body}</div>\n</div>"""

    ask = rng.choice(("Problem", "Problem statement"))
    out = ['<div class="region region-content"><div class="views-element-container">']
    for gold in exercises:
        parts = [
            field("number", "Number", str(gold.number)),
            field("week", "Posted", _date(rng)),
            field("problem", ask, _ps(gold.problem), "above"),
        ]
        if gold.solution is not None:
            parts.append(field("solution", "Solution", _ps(gold.solution), "above"))
            parts.append(field("solvers", "Solved by", ", ".join(rng.sample(_USERS, 3))))
        parts.append(field("tags", "Tags", f'<a href="/tags/x" hreflang="en">{rng.choice(_TOPICS)}</a>'))
        body = "\n".join(parts)
        out.append(f"""<article class="node node--type-problem" about="/node/{rng.randint(90, 900)}">
<div class="node__content clearfix">\n{body}
<ul class="links inline"><li><a href="/user/login">Log in</a> to post comments</li></ul>\n</div></article>""")
    out.append('</div><nav class="pager"><a href="?page=1">Next ›</a></nav></div>')
    return "\n".join(out)


def table_sheet_rows(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A worksheet table: a row an exercise, with columns for number, task, answer and marks."""
    ask, reply = rng.choice((("Question", "Answer"), ("Problem", "Solution"), ("Exercise", "Model answer")))
    empty = rng.choice(("", "&nbsp;", "—"))
    out = [
        f"""<div class="entry-content">
<p>Revision sheet for {rng.choice(_TOPICS)}. Calculators are allowed.</p>
<figure class="wp-block-table"><table class="has-fixed-layout">
<thead><tr><th>No.</th><th>{ask}</th><th>{reply}</th><th>Marks</th></tr></thead>\n<tbody>"""
    ]
    for gold in exercises:
        problem = "<br><br>".join(_paragraphs(gold.problem))
        answer = empty if gold.solution is None else "<br><br>".join(_paragraphs(gold.solution))
        cells = (str(gold.number), problem, answer, str(rng.randint(1, 6)))
        out.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    out.append("""</tbody></table><figcaption>Print this sheet on A4 paper.</figcaption></figure>
<p><a class="wp-block-button__link" href="/sheet.pdf">Download as PDF</a></p>\n</div>""")
    return "\n".join(out)


def table_mark_scheme(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An exam portal: a bordered table an exercise, with rows for the question and for its mark scheme."""
    reply = rng.choice(("Mark scheme", "Markscheme", "Solution"))
    out = [
        f"""<div id="content"><p class="crumbs"><a href="/">Home</a> &raquo;
<a href="/past">Past papers</a> &raquo; Paper {rng.randint(1, 3)}</p>"""
    ]
    for gold in exercises:
        out.append(f"""<table class="qtable" border="1" cellpadding="6" width="100%">
<tr bgcolor="#dde6f0"><th colspan="2">Question {gold.number}
<small>[{rng.randint(3, 9)} marks]</small></th></tr>
<tr><td width="15%"><b>Question</b></td><td>{_ps(gold.problem)}</td></tr>""")
        if gold.solution is not None:
            out.append(f'<tr class="ms"><td><b>{reply}</b></td><td>{_ps(gold.solution)}</td></tr>')
        out.append(f"<tr><td><b>Syllabus</b></td><td>{rng.choice(_TOPICS)}</td></tr>\n</table>\n<br>")
    return "\n".join([*out, '<p class="top"><a href="#content">Back to top</a></p></div>'])


def _answers(gold: Gold, exercises: Sequence[Gold], rng: random.Random) -> list[tuple[str, int, bool]]:
    """A thread's answers as (text, votes, accepted): the gold one accepted or else the most voted one."""
    if gold.solution is None:
        return []
    accepted = rng.random() < 0.6
    votes = rng.randint(3, 14)
    others = [other.solution for other in exercises if other.solution not in (None, gold.solution)]
    answers = [(gold.solution, votes, accepted)]
    for guess in rng.sample(_GUESSES, rng.randint(1, 2)):
        text = rng.choice(others) if others and rng.random() < 0.6 else guess
        if text is not None and text not in [answer[0] for answer in answers]:
            answers.append((text, rng.randint(-1, votes + (3 if accepted else -1)), False))
    return answers


def forum_q2a(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question2Answer threads: a voting box on each post, the selected answer marked as the best answer."""

    def post(main: str, votes: int, text: str, did: str, mark: str = "") -> str:
        return f"""<div class="qa-voting qa-voting-net"><div class="qa-vote-buttons">
<input title="Click to vote up" type="submit" value="+" class="qa-vote-one-button"></div>
<div class="qa-vote-count"><span class="qa-netvote-count-data">{votes:+d}</span>
<span class="qa-netvote-count-pad"> votes</span></div></div>\n<div class="{main}-main">\n{mark}
<div class="{main}-content qa-post-content"><div itemprop="text">\n{_ps(text, br=True)}\n</div></div>
<span class="{main}-meta"><span class="{main}-what">{did}</span> <span class="{main}-when">{_date(rng)}</span>
by <a class="qa-user-link">{rng.choice(_USERS)}</a> ({rng.randint(1, 90) * 10} points)</span></div>"""

    out = ['<div class="qa-main">']
    best = """<div class="qa-a-selection"><div class="qa-a-selected">&nbsp;</div>
<div class="qa-a-selected-text">Best answer</div></div>"""
    for gold in exercises:
        ident = rng.randint(1000, 90000)
        answers = sorted(_answers(gold, exercises, rng), key=lambda answer: (not answer[2], -answer[1]))
        out.append(f"""<div class="qa-thread">\n<h1><a href="/{ident}/exercise-{gold.number}">
<span itemprop="name">Exercise {gold.number}, {rng.choice(_TOPICS)}</span></a></h1>
<div class="qa-q-view" id="q{ident}">\n{post("qa-q-view", rng.randint(0, 9), gold.problem, "asked")}\n</div>
<h2>{len(answers)} Answer{"" if len(answers) == 1 else "s"}</h2>""")
        for step, (text, votes, accepted) in enumerate(answers, 1):
            name = "qa-a-list-item" + (" qa-a-list-item-selected" if accepted else "")
            out.append(f"""<div class="{name}" id="a{ident + step}">
{post("qa-a-item", votes, text, "answered", best if accepted else "")}\n</div>""")
        out.append("</div>")
    return "\n".join([*out, "</div>"])


def forum_xenforo(exercises: Sequence[Gold], rng: random.Random) -> str:
    """XenForo question threads in order of time: vote counts and, where one is chosen, a Solution label."""

    def message(number: int, text: str, foot: str, solved: bool = False) -> str:
        label = '<div class="message-solutionLabel"><i class="fa--xf"></i> Solution</div>' if solved else ""
        body = "<br />\n<br />\n".join(_paragraphs(text, br=True))
        return f"""<article class="message message--post{" message--solution" if solved else ""}">
<div class="message-cell message-cell--user"><h4 class="message-name">{rng.choice(_USERS)}</h4>
<h5 class="userTitle message-userTitle">{rng.choice(("Member", "Homework Helper", "Newcomer"))}</h5></div>
<div class="message-cell message-cell--main"><header class="message-attribution">
<time class="u-dt">{_date(rng)}</time> <a href="#post">#{number}</a></header>\n{label}
<div class="message-userContent"><div class="bbWrapper">{body}</div></div>
<footer class="message-footer">{foot} <a class="actionBar-action">Reply</a></footer></div></article>"""

    out = ['<div class="p-body-content">']
    for gold in exercises:
        out.append(f"""<div class="block block--messages">\n<h1 class="p-title-value">
<span class="label label--primary">Homework</span> Problem {gold.number}: where do I start?</h1>""")
        out.append(message(1, gold.problem, ""))
        answers = _answers(gold, exercises, rng)
        rng.shuffle(answers)
        for number, (text, votes, accepted) in enumerate(answers, 2):
            out.append(
                message(
                    number,
                    text,
                    f"""<div class="contentVote"><a class="contentVote-up">Upvote</a>
<span class="contentVote-score">{votes}</span> <a class="contentVote-down">Downvote</a></div>""",
                    accepted,
                )
            )
        out.append('<a href="/login" class="button">You must log in or register to reply here.</a>\n</div>')
    return "\n".join([*out, "</div>"])


def end_textbook_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A textbook companion's review exercises as a numbered list, with the answers in a list at the end."""
    ask = rng.choice(("Review exercises", "Problems", "Practice questions"))
    key = rng.choice(("Answers", "Answer key", "Solutions to the exercises"))
    out = [
        f"""<div class="chapter-content">\n<h2>{ask}</h2>
<p class="intro">Answers are at the end of this page.</p>\n<ol class="exercise-list">"""
    ]
    out += [f'<li value="{gold.number}">{_ps(gold.problem)}</li>' for gold in exercises]
    out.append(f'</ol>\n<hr>\n<h2 id="answers">{key}</h2>\n<ol class="answer-list">')
    out += [f'<li value="{g.number}">{_ps(g.solution)}</li>' for g in exercises if g.solution is not None]
    out.append(f"""</ol>\n<p class="licence">This chapter is shared under a
<a rel="license" href="#">CC BY-NC-SA 4.0</a> license. Revised {_date(rng)}.</p>\n</div>""")
    return "\n".join(out)


def end_linked_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An old lecture page: bold numbers, a link from each problem to the key at the end, and a link back."""
    link = rng.choice(("[Solution]", "[see answer]", "Go to solution"))
    out = [
        f"""<center><h1>Problem set {rng.randint(1, 12)}</h1></center>
<p><i>Due {_date(rng)}. Hand in at the beginning of class.</i></p>"""
    ]
    for gold in exercises:
        out.append(f'<a name="p{gold.number}"></a>\n' + _ps(gold.problem, f"<b>{gold.number}.</b> "))
        if gold.solution is not None:
            out.append(f'<p align="right"><a href="#s{gold.number}">{link}</a></p>')
    out.append('<hr width="80%">\n<center><h2>Solutions</h2></center>')
    for gold in exercises:
        if gold.solution is not None:
            out.append(f"""<a name="s{gold.number}"></a>\n{_ps(gold.solution, f"<b>{gold.number}.</b> ")}
<p align="right"><a href="#p{gold.number}"><small>Back to problem</small></a></p>""")
    out.append(f"<hr>\n<address>Maintained by {rng.choice(_USERS)}. Best viewed at 1024 x 768.</address>")
    return "\n".join(out)


def toggle_details(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A static course site: a box an exercise, the solution (and at times a hint) in a details element."""
    show = rng.choice(("Solution", "Show solution", "Click to reveal the solution"))
    out = ['<article class="md-content__inner md-typeset">\n<a href="#" class="md-icon">Edit this page</a>']
    for gold in exercises:
        out.append(f"""<div class="admonition question" id="ex{gold.number}">
<p class="admonition-title">Exercise {gold.number}</p>\n{_ps(gold.problem)}\n</div>""")
        if gold.solution is not None:
            hint = "<summary>Hint</summary>\n<p>Look again at the example in the last section.</p></details>"
            out.append('<details class="tip">' + hint if rng.random() < 0.4 else "")
            out.append(f'<details class="ok"><summary>{show}</summary>\n{_ps(gold.solution)}\n</details>')
    out.append(f'<p class="md-source-file"><small>Last update: {_date(rng)}</small></p></article>')
    return "\n".join(out)


def toggle_collapse_card(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutoring site: a card an exercise, its solution in a collapse panel opened by a button."""
    button = rng.choice(("Show Solution", "View Answer", "Show answer"))
    out = [f'<section class="practice">\n<p>Score: <span id="score">0</span> / {len(exercises)}</p>']
    for gold in exercises:
        ident = f"collapse-{gold.number}"
        out.append(f"""<div class="card question-card mb-3">\n<div class="card-header">Question {gold.number}
<span class="badge badge-info float-right">{rng.choice(_LEVELS)}</span></div>
<div class="card-body"><div class="question-text">\n{_ps(gold.problem)}\n</div>""")
        if gold.solution is not None:
            out.append(f"""<button class="btn btn-primary" type="button" data-toggle="collapse"
data-target="#{ident}" aria-expanded="false" aria-controls="{ident}">{button}</button>
<div class="collapse" id="{ident}"><div class="card card-body">\n{_ps(gold.solution)}\n</div></div>""")
        out.append(f"""</div>\n<div class="card-footer text-muted"><a href="#">Bookmark</a> &middot;
<a href="#">Discuss ({rng.randint(0, 30)})</a></div>\n</div>""")
    return "\n".join([*out, "</section>"])


def inline_board_blog(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A school board's solutions blog: bold "Question n." and "Solution:" labels in running paragraphs."""
    ask = rng.choice(("Question {}.", "Q{}.", "Ques {}:"))
    reply, gap = rng.choice(("Solution:", "Ans:", "Answer:")), rng.choice((" ", "<br />\n"))
    out = [
        f"""<div class="entry-content">\n<p>Below are solved questions on {rng.choice(_TOPICS)} for your
exam preparation. Students can also download them in PDF form.</p>"""
    ]
    for gold in exercises:
        out.append(_ps(gold.problem, f"<strong>{ask.format(gold.number)}</strong>{gap}"))
        if gold.solution is not None:
            out.append(_ps(gold.solution, f"<strong>{reply}</strong>{gap}"))
    out.append('<p class="sharing">Share this: <a href="#">WhatsApp</a> <a href="#">Telegram</a></p></div>')
    return "\n".join(out)


def inline_tutorial_list(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutorial sheet as plain list items, the solution set off by an italic label in the same item."""
    word, reply = rng.choice(("Problem", "Exercise", "Example")), rng.choice(("Solution.", "Answer.", "Sol."))
    out = [f'<div class="tutorial-sheet">\n<p>Tutor: {rng.choice(_USERS)}. Sheet of {_date(rng)}.</p>\n<ul>']
    for gold in exercises:
        tail = f' <span class="marks">[{rng.randint(2, 8)} marks]</span>' if rng.random() < 0.4 else ""
        item = _ps(gold.problem, f'<span class="label"><b>{word} {gold.number}.</b></span> ', tail)
        if gold.solution is not None:
            item += "\n" + _ps(gold.solution, f"<em>{reply}</em> ")
        out.append(f"<li>{item}</li>")
    return "\n".join([*out, "</ul>\n<p>Please send corrections by e-mail.</p>\n</div>"])


LAYOUTS: dict[str, Style] = {
    "heading_sphinx_notes": heading_sphinx_notes,
    "heading_contest_wiki": heading_contest_wiki,
    "dl_bank_record": dl_bank_record,
    "dl_drupal_fields": dl_drupal_fields,
    "table_sheet_rows": table_sheet_rows,
    "table_mark_scheme": table_mark_scheme,
    "forum_q2a": forum_q2a,
    "forum_xenforo": forum_xenforo,
    "end_textbook_key": end_textbook_key,
    "end_linked_key": end_linked_key,
    "toggle_details": toggle_details,
    "toggle_collapse_card": toggle_collapse_card,
    "inline_board_blog": inline_board_blog,
    "inline_tutorial_list": inline_tutorial_list,
}
