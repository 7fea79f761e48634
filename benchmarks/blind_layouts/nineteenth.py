"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 19."""

from __future__ import annotations

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_TOKEN = re.compile(
    r"(?P<img>!\[(?P<alt>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<src>[^()\s]*(?:\([^()]*\)[^()\s]*)*)\))"
    r"|(?P<math>\\begin\{(?P<env>\w+\*?)\}[\s\S]*?\\end\{(?P=env)\}|\\\\|\\\$|\$\$[\s\S]+?\$\$"
    r"|\\\[[\s\S]+?\\\]|\\\([\s\S]+?\\\)"
    r"|\$(?:[^$\\\n!]|!(?!\[)|\\[^\n]|\n(?!\s*\n))+?\$)"
    r"|(?P<gap>\n[ \t\r]*\n\s*)|(?P<line>\n)"
)
_PEOPLE = ("M. Okafor", "lena_w", "Tomasz K.", "quadratic_quail", "J. Hargreaves", "Priya S.", "notEuler")
_TOPICS = ("Algebra", "Mechanics", "Number theory", "Geometry", "Kinematics", "Probability", "Calculus")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Sep", "Oct", "Nov", "Dec")
_GUESSES = (
    "I would guess it is 42, but I did not check the units.",
    "Isn't this just zero by symmetry? At least that is what my calculator says.",
    "My friend got 17 for this one, no idea how.",
    "Probably 3/4. You can see it from the sketch.",
)


def _paragraphs(raw: str) -> list[str]:
    """The HTML of each paragraph of a gold text, formulas whole and images as elements."""

    def show(match: re.Match[str]) -> str:
        if match["img"] is not None:
            src, alt = (match[key].replace('"', "&quot;") for key in ("src", "alt"))
            return f'<img src="{src}" alt="{alt}">'
        return match["math"] or ("\0" if match["gap"] else "<br>\n")

    escaped = html.escape(raw.strip(), quote=False)
    return [part for part in _TOKEN.sub(show, escaped).split("\0") if part.strip()]


def _body(raw: str) -> str:
    """A gold text as a run of paragraph elements."""
    return "\n".join(f"<p>{part}</p>" for part in _paragraphs(raw))


def _lead(lead: str, raw: str | None) -> str:
    """A gold text as paragraphs, the first of which begins with a label; nothing where there is none."""
    return "" if raw is None else _body(raw).replace("<p>", f"<p>{lead}", 1)


def _if(before: str, solution: str | None, after: str = "") -> str:
    """A solution within its wrapper, nothing where there is none."""
    return "" if solution is None else f"{before}{_body(solution)}{after}"


def _date(rng: random.Random) -> str:
    """A made-up date."""
    return f"{rng.choice(_MONTHS)} {rng.randint(1, 28)}, {rng.randint(2009, 2024)}"


def _answers(exercises: Sequence[Gold], gold: Gold, rng: random.Random) -> list[tuple[str, int, bool]]:
    """The answers to a thread as (text, votes, accepted): the gold one among wrong ones."""
    if gold.solution is None:
        return []
    others = [e.solution for e in exercises if e.solution and e.solution.strip() != gold.solution.strip()]
    wrong = [rng.choice(others)] if others and rng.random() < 0.7 else []
    wrong += rng.sample(_GUESSES, rng.randint(0 if wrong else 1, 2))
    accepted = rng.random() < 0.6
    votes = rng.randint(3, 20)
    top = votes + 4 if accepted else votes - 1
    answers = [(text, rng.randint(-2, top), False) for text in wrong] + [(gold.solution, votes, accepted)]
    rng.shuffle(answers)
    return answers


def heading_libretexts(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An open textbook section: a heading for each exercise, a smaller one for its solution."""
    out = [
        """<section class="mt-content-container">
<h2 class="editable" id="Exercises">Review Exercises</h2>
<div class="mt-page-summary"><p>Try each of these before you read on.</p></div>"""
    ]
    for e in exercises:
        out.append(f"""<div class="box-exercise" id="ex-{e.number}">
<h3 class="box-legend"><span class="lt-icon-default">Exercise</span> {e.number}</h3>
{_body(e.problem)}
{_if('<h4 class="box-subheading">Solution</h4>', e.solution)}</div>
<p class="backtop"><a href="#Exercises" title="Back to top">↑ Top</a></p>""")
    out.append(f"""<div class="mt-license"><p>This page is shared under a
<a rel="license">CC BY-NC-SA 4.0</a> license. Last updated {_date(rng)}.</p></div>\n</section>""")
    return "\n".join(out)


def heading_mediawiki(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A contest wiki page: problem and solution sections with edit links."""

    def head(level: int, title: str, anchor: str) -> str:
        return f"""<h{level}><span class="mw-headline" id="{anchor}">{title}</span>
<span class="mw-editsection"><span class="mw-editsection-bracket">[</span>
<a href="/index.php?action=edit" title="Edit section: {title}">edit</a>
<span class="mw-editsection-bracket">]</span></span></h{level}>""".replace("\n", "")

    out = [
        """<div id="mw-content-text" class="mw-body-content"><div class="mw-parser-output">
<div id="toc" class="toc"><div class="toctitle"><h2>Contents</h2></div>\n<ul>"""
    ]
    for i, e in enumerate(exercises, 1):
        out.append(
            f'<li class="toclevel-1"><a href="#Problem_{e.number}"><span class="tocnumber">{i}</span> '
            f'<span class="toctext">Problem {e.number}</span></a></li>'
        )
    out.append("</ul></div>")
    for e in exercises:
        out += [head(2, f"Problem {e.number}", f"Problem_{e.number}"), _body(e.problem)]
        if e.solution is not None:
            out += [head(3, "Solution", f"Solution_{e.number}"), _body(e.solution)]
            if rng.random() < 0.4:
                out.append(f'<p><small>~<a class="mw-userlink">{rng.choice(_PEOPLE)}</a></small></p>')
    year = rng.randint(1995, 2023)
    out.append(f"""{head(2, "See also", "See_also")}
<ul><li><a href="/wiki/{year}">{year} problem list</a></li>
<li><a href="/wiki/Resources">Mathematics competition resources</a></li></ul>
<div class="catlinks">Category: <a href="/wiki/C">{rng.choice(_TOPICS)} Problems</a></div>\n</div></div>""")
    return "\n".join(out)


def dl_archive_record(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A problem archive: every problem is a record, a description list of named fields."""
    out = [
        f"""<div class="breadcrumbs"><a href="/">Archive</a> » <a href="/search">Search results</a></div>
<p class="found">{len(exercises)} records found. Sort by <a href="?s=n">number</a> <a>level</a></p>"""
    ]
    for e in exercises:
        out.append(f"""<dl class="record" id="rec{e.number}">
<dt>Problem no.</dt>\n<dd>{e.number}</dd>
<dt>Subject</dt>\n<dd><a href="/subject">{rng.choice(_TOPICS)}</a></dd>
<dt>Difficulty</dt>\n<dd>{rng.choice(("2", "2+", "3-", "3", "4"))}</dd>
<dt>Statement</dt>\n<dd>{_body(e.problem)}</dd>
{_if("<dt>Solution</dt><dd>", e.solution, "</dd>")}
<dt>Source</dt>
<dd>Regional olympiad, {rng.randint(1978, 2015)}, grade {rng.randint(7, 11)}</dd>
<dt>Submitted by</dt>\n<dd>{rng.choice(_PEOPLE)}</dd>\n</dl>""")
    out.append('<div class="pager"><span>1</span> <a href="?p=2">2</a> <a href="?p=2">Next</a></div>')
    return "\n".join(out)


def dl_drupal_fields(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A content management view: each exercise is a node with labelled fields."""

    def field(name: str, label: str, item: str) -> str:
        return f"""<div class="field field--name-field-{name} field--type-text-long field--label-above">
<div class="field__label">{label}</div>\n<div class="field__item">{item}</div>\n</div>"""

    out = [
        """<div class="view view-exercises view-id-exercises view-display-id-page_1">
<div class="view-header">Displaying all exercises of this unit.</div>\n<div class="view-content">"""
    ]
    for e in exercises:
        out += [
            '<div class="views-row"><article role="article" class="node node--type-exercise">',
            field("number", "Exercise number", str(e.number)),
            field("grade", "Grade", str(rng.randint(8, 13))),
            field("task", "Task", _body(e.problem)),
        ]
        if e.solution is not None:
            out.append(field("solution", "Solution", _body(e.solution)))
        tags = [f'<a href="/taxonomy/term/{rng.randint(2, 90)}">{t}</a>' for t in rng.sample(_TOPICS, 2)]
        out.append(f"""{field("tags", "Tags", ", ".join(tags))}
<ul class="links inline"><li><a href="/user/login">Log in</a> to post comments</li></ul>\n</article></div>""")
    out.append('</div>\n<div class="feed-icons"><a href="/rss.xml">Subscribe</a></div>\n</div>')
    return "\n".join(out)


def table_question_bank(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A question bank: one table with a row for each question."""
    empty = rng.choice(("", "—", "&nbsp;"))
    out = [
        """<p class="intro">Use the filter to narrow the list. <a href="bank.csv">Export CSV</a></p>
<div class="table-responsive">\n<table class="table table-striped table-bordered" id="qbank">
<caption>Question bank</caption>\n<thead><tr><th scope="col">#</th><th scope="col">Question</th>
<th scope="col">Level</th><th scope="col">Answer</th><th scope="col">Used</th></tr></thead>\n<tbody>"""
    ]
    for e in exercises:
        colour, level = rng.choice((("success", "Easy"), ("warning", "Medium"), ("danger", "Hard")))
        out.append(f"""<tr id="q-{e.number}"><td>{e.number}</td>\n<td>{_body(e.problem)}</td>
<td><span class="badge bg-{colour}">{level}</span></td>
<td>{empty if e.solution is None else _body(e.solution)}</td>\n<td>{rng.randint(0, 60)}×</td></tr>""")
    n = len(exercises)
    out.append(f'</tbody>\n</table>\n</div>\n<div class="dt-info">Showing 1 to {n} of {n} entries</div>')
    return "\n".join(out)


def table_per_problem(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An old-fashioned problem site: a table for each problem with the row names at the left."""
    out = ['<center><font size="+1"><b>Problem collection</b></font></center>']
    for e in exercises:
        out.append(f"""<table width="95%" border="1" cellpadding="4" cellspacing="0" class="problem">
<tr bgcolor="#ddddee"><th colspan="2" align="left">Problem {e.number} &nbsp;
<a href="print.php?id={e.number}"><font size="-1">print version</font></a></th></tr>
<tr><th valign="top" width="90">Topic</th><td>{rng.choice(_TOPICS)}</td></tr>
<tr><th valign="top">Problem</th><td>{"<br><br>".join(_paragraphs(e.problem))}</td></tr>""")
        if e.solution is not None:
            solution = "<br><br>".join(_paragraphs(e.solution))
            out.append(f'<tr><th valign="top">Solution</th><td>{solution}</td></tr>')
        out.append(f"""<tr><th valign="top">Rating</th>
<td>{rng.randint(20, 50) / 10} ({rng.randint(2, 99)} votes)</td></tr>\n</table><br>""")
    out.append(f'<p align="center"><a href="/">Home</a> | <a>Webmaster</a> | {_date(rng)}</p>')
    return "\n".join(out)


def forum_stackexchange(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question-and-answer threads with vote counts, an accepted mark and comments."""

    def post(text: str, count: int, accepted: bool, kind: str, verb: str) -> str:
        mark = (
            """<div class="js-accepted-answer-indicator" title="The question owner accepted this">
<span class="v-visible-sr">✓ Accepted</span></div>"""
            if accepted
            else ""
        )
        return f"""<div class="post-layout"><div class="votecell"><div class="js-voting-container">
<button class="js-vote-up-btn" aria-label="Up vote">▲</button>
<div class="js-vote-count" itemprop="upvoteCount">{count}</div>
<button class="js-vote-down-btn" aria-label="Down vote">▼</button>{mark}</div></div>
<div class="{kind} post-layout--right"><div class="s-prose js-post-body" itemprop="text">
{_body(text)}\n</div>
<div class="js-post-menu"><a href="#">Share</a> <a href="#">Cite</a> <button>Follow</button></div>
<div class="user-info"><div class="user-action-time">{verb} <span>{_date(rng)}</span></div>
<div class="user-details"><a href="/users/{rng.randint(100, 9999)}">{rng.choice(_PEOPLE)}</a>
<span class="reputation-score">{rng.randint(1, 9000):,}</span></div></div></div></div>"""

    out = []
    for e in exercises:
        answers = _answers(exercises, e, rng)
        out.append(f"""<div class="inner-content" itemscope itemtype="https://schema.org/Question">
<div id="question-header"><h1 itemprop="name"><a class="question-hyperlink" href="/questions/{e.number}">
Exercise {e.number} from the {rng.choice(_TOPICS).lower()} sheet</a></h1></div>
<div class="question">{post(e.problem, rng.randint(0, 9), False, "postcell", "asked")}
<div class="post-taglist"><a class="post-tag" rel="tag">homework</a></div>""")
        if rng.random() < 0.5:
            out.append(f"""<ul class="comments-list"><li class="comment">
<span class="comment-copy">What have you tried so far?</span> – <a>{rng.choice(_PEOPLE)}</a></li></ul>""")
        out.append(f"""</div>\n<div class="answers"><div class="answers-header">
<h2>{len(answers)} {"Answer" if len(answers) == 1 else "Answers"}</h2></div>""")
        for i, (text, count, accepted) in enumerate(answers):
            more, item = (" accepted-answer", "acceptedAnswer") if accepted else ("", "suggestedAnswer")
            out.append(f"""<div id="answer-{e.number}{i}" class="answer js-answer{more}" itemprop="{item}">
{post(text, count, accepted, "answercell", "answered")}</div>""")
        out.append("</div>\n</div>")
    return "\n".join(out)


def forum_xenforo(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question threads of a bulletin board: a solution flag, or else vote scores."""

    def message(text: str, extra: str, badge: str, footer: str) -> str:
        name = rng.choice(_PEOPLE)
        signature = rng.choice(("Per aspera ad astra", "Please use LaTeX!", "-- sent from my phone"))
        return f"""<article class="message message--post{extra}"><div class="message-inner">
<div class="message-cell message-cell--user"><h4 class="message-name"><a class="username">{name}</a></h4>
<h5 class="userTitle">{rng.choice(("Member", "Newbie", "Science Advisor"))}</h5></div>
<div class="message-cell message-cell--main"><header><time>{_date(rng)}</time></header>
{badge}<div class="message-userContent"><article class="message-body"><div class="bbWrapper">
{_body(text)}\n</div></article></div>
<aside class="message-signature"><div class="bbWrapper">{signature}</div></aside>
<footer class="message-footer">{footer}<a class="action">Report</a></footer></div></div></article>"""

    out = []
    for e in exercises:
        answers = _answers(exercises, e, rng)
        out.append(f"""<div class="p-title"><h1 class="p-title-value"><span class="label">Question</span>
Problem {e.number}</h1></div>\n<div class="block block--messages" data-type="post">
{message(e.problem, " message--question", "", '<a class="actionBar-action">Reply</a>')}""")
        if answers:
            out.append(f'<div class="block-header"><h3>Replies: {len(answers)}</h3></div>')
        for text, count, accepted in answers:
            badge = '<div class="badge"><i class="fa fa-check"></i> Solution</div>' if accepted else ""
            vote = f"""<div class="contentVote"><a>Upvote</a>
<span class="contentVote-score js-voteCount" data-score="{count}">{count}</span> <a>Downvote</a></div>"""
            out.append(message(text, " message--solution" if accepted else "", badge, vote))
        out.append("</div>")
    return "\n".join(out)


def end_textbook_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A chapter's exercise list, with the answers to it at the foot of the page."""
    out = [
        f"""<div class="chapter-end">\n<h2>Exercises for Chapter {rng.randint(2, 14)}</h2>
<p class="instructions"><em>Write out your reasoning in full.</em></p>\n<ol class="exercise-list">"""
    ]
    out += [f'<li value="{e.number}" id="x{e.number}">{_body(e.problem)}</li>' for e in exercises]
    out.append('</ol>\n<hr class="sep">\n<h2>Answers to the Exercises</h2>\n<div class="answer-key">')
    out += [_lead(f'<a href="#x{e.number}"><b>{e.number}.</b></a> ', e.solution) for e in exercises]
    out.append("""</div>\n<p class="chapnav"><a href="prev.html">« Previous chapter</a> ·
<a href="toc.html">Contents</a> · <a href="next.html">Next chapter »</a></p>\n</div>""")
    return "\n".join(out)


def end_exam_scheme(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A practice paper: questions with marks, then the mark scheme as a table."""
    out = [f'<div class="paper"><p>Time: {rng.choice((45, 60, 90))} minutes. Calculators may be used.</p>']
    for e in exercises:
        out.append(f"""<div class="question-block"><div class="qnum">Question {e.number}</div>
<div class="qtext">{_body(e.problem)}</div>\n<div class="marks">({rng.randint(2, 8)} marks)</div></div>""")
    out.append("""<p class="eop">END OF QUESTIONS</p>\n</div>\n<div class="mark-scheme">\n<h2>Mark scheme</h2>
<table>\n<tr><th>Question</th><th>Answer</th></tr>""")
    out += [_if(f"<tr><td>{e.number}</td><td>", e.solution, "</td></tr>") for e in exercises]
    out.append(f'</table>\n<p class="copyright">© {rng.randint(2012, 2024)} Practice Papers</p>\n</div>')
    return "\n".join(out)


def toggle_bootstrap_collapse(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Cards whose hint and solution open by buttons."""

    def button(colour: str, target: str, label: str) -> str:
        return f"""<button class="btn btn-{colour} btn-sm" type="button" data-bs-toggle="collapse"
data-bs-target="#{target}" aria-expanded="false" aria-controls="{target}">{label}</button>"""

    out = []
    for e in exercises:
        n = e.number
        out.append(f"""<div class="card mb-4"><div class="card-header"><span>Exercise {n}</span>
<span class="badge rounded-pill bg-info">{rng.choice(_TOPICS)}</span></div>
<div class="card-body">\n<div class="card-text">{_body(e.problem)}</div>""")
        hint = rng.choice(("Draw a diagram first.", "Which quantities are given?", "", "", ""))
        if hint:
            out.append(f"""{button("outline-secondary", f"hint{n}", "Show hint")}
<div class="collapse" id="hint{n}"><div class="alert alert-secondary">{hint}</div></div>""")
        if e.solution is not None:
            out.append(f"""{button("primary", f"solution{n}", "Show solution")}
<div class="collapse" id="solution{n}"><div class="card card-body">{_body(e.solution)}</div></div>""")
        out.append("</div></div>")
    return "\n".join(out)


def toggle_mkdocs_details(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A documentation generator's admonitions: a question box and a folded solution box."""
    out = [
        """<article class="md-content__inner md-typeset">
<a href="/edit" title="Edit this page" class="md-content__button md-icon">Edit</a>
<h1 id="practice">Practice<a class="headerlink" href="#practice" title="Permanent link">¶</a></h1>"""
    ]
    for e in exercises:
        kind = rng.choice(("success", "note", "tip"))
        out.append(f"""<div class="admonition question">\n<p class="admonition-title">Exercise {e.number}</p>
{_body(e.problem)}\n</div>
{_if(f'<details class="{kind}"><summary>Solution</summary>', e.solution, "</details>")}""")
    out.append(f'<hr>\n<div class="md-source-file">Last update: {_date(rng)}</div>\n</article>')
    return "\n".join(out)


def inline_tutor_blog(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutoring blog's entry: bold question and answer labels in running paragraphs."""
    out = [
        f"""<div class="entry-content">
<p>Hello students! Below are {rng.choice(("some", "the most"))} important questions with answers.</p>"""
    ]
    for i, e in enumerate(exercises):
        out.append(_lead(f"<strong>Q{e.number}.</strong> ", e.problem))
        out.append(_lead("<strong>Ans:</strong> ", e.solution))
        if i % 4 == 2:
            out.append('<div class="code-block"><ins class="adsbygoogle"></ins>Advertisement</div>')
    out.append(f"""<div class="sharedaddy"><span>Share this:</span> <a>Facebook</a> <a>WhatsApp</a></div>
<p class="post-meta">Posted by {rng.choice(_PEOPLE)} on {_date(rng)}</p></div>""")
    return "\n".join(out)


def inline_notes_list(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lecture notes: list items in which short labels begin the problem and the solution."""
    out = [f'<p>These were discussed in the tutorial of {_date(rng)}.</p>\n<ul style="list-style-type:none">']
    for e in exercises:
        out += [
            f'<li><a name="prob{e.number}"></a>',
            _lead(f"<b>Problem {e.number}.</b> ", e.problem),
            _lead("<i>Solution.</i> ", e.solution),
            "</li>",
        ]
    out.append("</ul>\n<address>Please report mistakes to the lecturer.</address>")
    return "\n".join(out)


LAYOUTS: dict[str, Style] = {
    "heading_libretexts": heading_libretexts,
    "heading_mediawiki": heading_mediawiki,
    "dl_archive_record": dl_archive_record,
    "dl_drupal_fields": dl_drupal_fields,
    "table_question_bank": table_question_bank,
    "table_per_problem": table_per_problem,
    "forum_stackexchange": forum_stackexchange,
    "forum_xenforo": forum_xenforo,
    "end_textbook_key": end_textbook_key,
    "end_exam_scheme": end_exam_scheme,
    "toggle_bootstrap_collapse": toggle_bootstrap_collapse,
    "toggle_mkdocs_details": toggle_mkdocs_details,
    "inline_tutor_blog": inline_tutor_blog,
    "inline_notes_list": inline_notes_list,
}
