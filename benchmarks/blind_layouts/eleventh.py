"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 11."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_DISPLAY = r"\$\$.+?\$\$|(?<!\\)\\\[.+?\\\]"
_FORMULA = _DISPLAY + r"|(?<!\\)\\\(.+?\\\)|(?<![\\$])\$(?![\s$])[^$]*?(?<![\s\\])\$"
_IMAGE = r"!\[(?P<alt>[^\]]*)\]\((?P<src>(?:[^()\n]|\([^()\n]*\))+)\)"
_TOKEN = re.compile(f"(?P<formula>{_FORMULA})|{_IMAGE}", re.S)
_BREAK = re.compile(f"({_DISPLAY})|\n[ \t]*\n\\s*", re.S)

_NAMES = ["mkowalski", "Priya_R", "tutor_dan", "Elena V.", "joao88", "SineCurve", "L. Marchetti", "Wei Zhang"]
_GUESSES = [
    "I think it is just zero, because everything cancels out.",
    "Not sure, but my calculator says 17, so I would go with that.",
    "I got 3/4 but the back of my book says something different.",
    "Try the quadratic formula, that always works for me.",
    "No idea, sorry. I would guess that it doubles.",
]
_TOPICS = ["Algebra", "Mechanics", "Number theory", "Geometry", "Probability", "Functions", "Chemistry"]
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Sep", "Oct", "Nov", "Dec"]


def _inline(text: str) -> str:
    """Escapes a piece of text, with its formulas whole and its images as elements."""
    out, at = [], 0
    for match in _TOKEN.finditer(text):
        image = f'<img src="{html.escape(match["src"] or "")}" alt="{html.escape(match["alt"] or "")}" />'
        formula = match["formula"]
        out += [
            html.escape(text[at : match.start()], quote=False),
            image if formula is None else html.escape(formula, quote=False),
        ]
        at = match.end()
    return "".join(out) + html.escape(text[at:], quote=False)


def _paragraphs(text: str) -> list[str]:
    """The text's paragraphs as HTML, split at the blank lines outside display formulas."""
    parts, at = [], 0
    for match in _BREAK.finditer(text):
        if match[1] is None:
            parts.append(text[at : match.start()])
            at = match.end()
    parts.append(text[at:])
    return [_inline(part.strip()) for part in parts if part.strip()]


def _p(text: str, lead: str = "") -> str:
    """The text as p elements, the first one opened by the lead."""
    parts = _paragraphs(text)
    return "\n".join(f"<p>{lead if i == 0 else ''}{part}</p>" for i, part in enumerate(parts))


def _key(gold: Gold, before: str, after: str = "") -> str:
    """The solution as p elements between two pieces of markup; nothing where there is none."""
    return "" if gold.solution is None else f"{before}{_p(gold.solution)}{after}"


def _br(text: str) -> str:
    """The text with its paragraphs parted by line breaks."""
    return "<br />\n<br />\n".join(_paragraphs(text))


def _date(rng: random.Random) -> str:
    return f"{rng.choice(_MONTHS)} {rng.randint(1, 28)}, {rng.randint(2009, 2024)}"


def _answers(gold: Gold, exercises: Sequence[Gold], rng: random.Random) -> list[tuple[str, int, bool]]:
    """A thread's answers as (text, votes, accepted), in a random order; the gold one wins."""
    if gold.solution is None:
        return []
    others = [e.solution for e in exercises if e.solution is not None and e.solution != gold.solution]
    wrong = rng.sample([guess for guess in _GUESSES if guess != gold.solution], rng.randint(1, 2))
    if others and rng.random() < 0.5:
        wrong[0] = rng.choice(others)
    accepted = rng.random() < 0.6
    top = rng.randint(4, 30)
    limit = top + 5 if accepted else top - 2
    answers = [(text, rng.randint(-1, limit), False) for text in wrong]
    answers.append((gold.solution, top, accepted))
    rng.shuffle(answers)
    return answers


def heading_contest_wiki(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Contest wiki articles: a Problem heading, a Solution heading and a See Also box each."""
    contest = f"{rng.randint(1998, 2023)} {rng.choice(['AMC 10A', 'AMC 12B', 'AIME I', 'Regional Olympiad'])}"
    edit = '<span class="mw-editsection">[<a href="/wiki/index.php?action=edit">edit</a>]</span>'
    out = ['<div id="mw-content-text" class="mw-content-ltr" lang="en"><div class="mw-parser-output">']
    for gold in exercises:
        n = gold.number
        reply = f'<h2><span class="mw-headline" id="Solution_{n}">Solution</span>{edit}</h2>\n'
        sign = f'\n<p>~<a href="/wiki/User:{n}">{rng.choice(_NAMES)}</a></p>' * (rng.random() < 0.4)
        out.append(f"""<h1 class="firstHeading">{contest} Problems/Problem {n}</h1>
<h2><span class="mw-headline" id="Problem_{n}">Problem</span>{edit}</h2>
{_p(gold.problem)}
{_key(gold, reply, sign)}
<h2><span class="mw-headline" id="See_Also_{n}">See Also</span>{edit}</h2>
<table class="wikitable"><tr><td colspan="2">{contest} (Problems &bull; Answer Key &bull; Resources)</td></tr>
<tr><td>Preceded by<br /><b><a href="/wiki/index.php/P{n - 1}">Problem {n - 1}</a></b></td>
<td>Followed by<br /><b><a href="/wiki/index.php/P{n + 1}">Problem {n + 1}</a></b></td></tr></table>""")
    return "\n".join(out) + '</div></div>\n<div id="catlinks"><a href="#">Category</a>: Introductory</div>'


def heading_problem_of_week(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A department's archive: one heading per problem of the week, a smaller one for its solution."""
    word = rng.choice(["Solution", "Model solution", "The solution", "Official Solution"])
    out = [
        """<main id="content" class="site-main"><h1 class="page-title">Problem of the Week Archive</h1>
<p class="lead">Every Monday a new problem. Hand in your entries at the Maths Office by Friday noon.</p>"""
    ]
    for gold in exercises:
        names = ", ".join(rng.sample(_NAMES, 3))
        won = f"\n<h3>Correct entries</h3>\n<p>Congratulations to {names}.</p>" * (rng.random() < 0.5)
        out.append(f"""<article id="post-{rng.randint(300, 4000)}" class="post type-post category-potw">
<h2 class="entry-title"><a href="/potw/{gold.number}/" rel="bookmark">Problem {gold.number}</a></h2>
<div class="entry-meta">Posted on <time>{_date(rng)}</time> by {rng.choice(_NAMES)}</div>
<div class="entry-content">{_p(gold.problem)}
{_key(gold, f"<h3>{word}</h3>", won)}</div>
<footer class="entry-footer"><a href="#respond">Leave a comment</a></footer></article>""")
    return "\n".join(out) + '<nav><a href="/potw/page/2">Older posts</a></nav></main>'


def dl_item_bank(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An item bank's records: a description list with stem, worked solution and metadata each."""
    stem = rng.choice(["Stem", "Question text", "Item text", "Task"])
    key = rng.choice(["Worked solution", "Model answer", "Solution"])
    out = [
        f"""<div class="results"><p class="results-count">Showing {len(exercises)} items &ndash;
<a href="?view=print">Print view</a> | <a href="?export=qti">Export QTI</a></p>"""
    ]
    for gold in exercises:
        fields = [
            ("Item", str(gold.number)),
            ("Subject", rng.choice(_TOPICS)),
            (stem, _p(gold.problem)),
            (key, _key(gold, "")),
            ("Marks", str(rng.randint(1, 8))),
            ("Last modified", _date(rng)),
        ]
        out.append(f'<section class="item-record" id="item-{gold.number}">\n<dl class="row item-details">')
        out += [f'<dt class="col-sm-3">{k}</dt>\n<dd class="col-sm-9">{v}</dd>' for k, v in fields if v]
        out.append('</dl>\n<button type="button" class="btn btn-sm">Add to test</button>\n</section>')
    return "\n".join(out) + "\n</div>"


def dl_drupal_node(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Drupal nodes: labelled fields for the exercise, its solution, the level and the tags."""
    ask, reply = rng.choice([("Exercise", "Solution"), ("Question", "Answer"), ("Problem", "Solution")])
    out = ['<div class="region region-content"><div class="view-content">']
    for gold in exercises:
        fields = [
            ("level", "Level", rng.choice(["Year 9", "Year 11", "A-level", "Undergraduate"])),
            ("body", ask, _p(gold.problem)),
            ("solution", reply, _key(gold, "")),
            ("tags", "Tags", f'<a href="/tags" hreflang="en">{rng.choice(_TOPICS)}</a>'),
        ]
        out.append(f"""<div class="views-row"><article role="article" class="node node--type-exercise">
<h2 class="node__title"><a href="/node/{gold.number}" rel="bookmark"><span>{ask} {gold.number}</span></a></h2>
<div class="node__content clearfix">""")
        out += [
            f"""<div class="field field--name-field-{name} field--type-text-long field--label-above">
<div class="field__label">{label}</div>
<div class="field__item">{value}</div></div>"""
            for name, label, value in fields
            if value
        ]
        out.append('</div><a href="/user/login">Log in</a> to post comments</article></div>')
    return "\n".join(out) + "\n</div></div>"


def table_revision_rows(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A revision sheet: one table, a row an exercise, with columns for question and answer."""
    ask, reply = rng.choice([("Question", "Answer"), ("Problem", "Solution"), ("Task", "Worked solution")])
    out = [
        f"""<div class="table-responsive"><table class="table table-striped table-bordered dataTable">
<caption>Revision sheet, {rng.choice(_TOPICS).lower()} &ndash; updated {_date(rng)}</caption>
<thead><tr><th scope="col">No.</th><th scope="col">Topic</th><th scope="col">{ask}</th>
<th scope="col">{reply}</th><th scope="col">Marks</th></tr></thead><tbody>"""
    ]
    for i, gold in enumerate(exercises):
        answer, topic = "&mdash;" if gold.solution is None else _br(gold.solution), rng.choice(_TOPICS)
        out.append(f"""<tr class="{"even" if i % 2 else "odd"}"><td>{gold.number}</td><td>{topic}</td>
<td>{_br(gold.problem)}</td><td>{answer}</td><td>{rng.randint(1, 6)}</td></tr>""")
    return "\n".join(out) + f"</tbody></table></div>\n<div>Showing {len(exercises)} entries</div>"


def table_exercise_card(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Old faculty pages: a bordered table an exercise, with header cells at the left."""
    ask, reply = rng.choice([("Problem", "Solution"), ("Task", "Solution"), ("Question", "Answer")])
    out = ["<center><h2>Tutorial Sheet</h2><i>Department of Mathematics and Physics</i></center><hr>"]
    for gold in exercises:
        n = gold.number
        out.append(f"""<table border="1" cellpadding="6" cellspacing="0" width="90%" align="center">
<tr bgcolor="#DDE6F2"><th colspan="2" align="left"><a name="ex{n}"></a>Exercise {n}</th></tr>
<tr valign="top"><th width="15%">{ask}</th><td>{_p(gold.problem)}</td></tr>
{_key(gold, f'<tr valign="top"><th>{reply}</th><td>', "</td></tr>")}
<tr><th>Reference</th><td><small>Lecture {rng.randint(2, 20)}</small></td></tr></table>
<p align="right"><a href="#top"><font size="-1">Back to top</font></a></p>""")
    return "\n".join(out) + f"\n<hr><address>Last revised {_date(rng)}</address>"


def forum_question2answer(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question2Answer threads: net votes, a selected answer or the best-voted one."""
    out = ['<div class="qa-main-wrapper">']

    def meta(verb: str) -> str:
        return f'{verb} {_date(rng)} by <a href="/user" class="qa-user-link">{rng.choice(_NAMES)}</a>'

    for gold in exercises:
        answers = _answers(gold, exercises, rng)
        out.append(f"""<div class="qa-main"><div class="qa-main-heading"><h1><a href="/{gold.number}/q">
<span class="entry-title">Exercise {gold.number}: how do I do this one?</span></a></h1></div>
<div class="qa-q-view"><span class="qa-netvote-count-data">+{rng.randint(1, 9)}</span><span> votes</span>
<div class="qa-q-view-main"><div class="qa-q-view-content qa-post-content">{_p(gold.problem)}</div>
<a href="/tag" class="qa-tag-link">{rng.choice(_TOPICS).lower()}</a>
<span class="qa-q-view-meta">{meta("asked")}</span></div></div>
<div class="qa-part-a-list"><h2 id="a_list_title">{len(answers)} Answer{"s" * (len(answers) != 1)}</h2>""")
        for text, votes, accepted in answers:
            badge = '<div class="qa-a-selected-text">Best answer</div>' * accepted
            out.append(f"""<div class="qa-a-list-item{" qa-a-list-item-selected" * accepted}">
<div class="qa-a-item-stats"><span class="qa-netvote-count-data">{votes:+d}</span>
<span class="qa-netvote-count-pad"> votes</span></div>{badge}
<div class="qa-a-item-main"><div class="qa-a-item-content qa-post-content">{_p(text)}</div>
<span class="qa-a-item-meta">{meta("answered")} ({rng.randint(100, 9000)} points)</span></div></div>""")
        out.append('</div><div class="qa-suggest-next">Please <a href="/login">log in</a>.</div></div>')
    return "\n".join(out) + "\n</div>"


def forum_xenforo(exercises: Sequence[Gold], rng: random.Random) -> str:
    """XenForo question threads: posts with vote counts, one marked as the solution or best voted."""
    out = ['<div class="p-body-content">']

    def post(text: str, place: int, votes: int | None, accepted: bool) -> str:
        vote = (
            ""
            if votes is None
            else f"""<div class="contentVote message-vote">
<a class="contentVote-vote vote-up">Upvote</a><span class="contentVote-score js-voteCount">{votes}</span>
<a class="contentVote-vote vote-down">Downvote</a></div>"""
        )
        mark = '<li><span class="message-solutionLabel">Solution</span></li>' * accepted
        rank = rng.choice(["Member", "Well-known member", "Science Advisor", "New member"])
        return f"""<article class="message{" message--solution" * accepted}" id="js-post-{place}">
<h4 class="message-name">{rng.choice(_NAMES)}</h4><h5 class="userTitle">{rank}</h5>
<header class="message-attribution"><ul><li><time>{_date(rng)}</time></li>{mark}
<li><a href="#post-{place}">#{place}</a></li></ul></header>{vote}
<div class="message-content"><div class="bbWrapper">{_br(text)}</div></div>
<footer class="message-footer"><a class="actionBar-action">Reply</a></footer></article>"""

    for gold in exercises:
        answers = _answers(gold, exercises, rng)
        state = '<span class="label label--green">Solved</span> ' * any(answer[2] for answer in answers)
        out.append(f"""<h1 class="p-title-value">{state}Homework problem {gold.number}</h1>
<ul class="listInline"><li>Thread starter {rng.choice(_NAMES)}</li><li>Start date {_date(rng)}</li></ul>
<div class="block-container"><div class="block-body">{post(gold.problem, 1, None, False)}""")
        if answers:
            out.append("""</div></div><a class="tabs-tab">Sort by date</a>
<a class="tabs-tab">Sort by votes</a>
<div class="block-container"><div class="block-body js-replyNewMessageContainer">""")
        out += [post(text, i, votes, accepted) for i, (text, votes, accepted) in enumerate(answers, 2)]
        out.append('</div></div>\n<div class="block-outer-opposite">You must log in to reply here.</div>')
    return "\n".join(out) + "\n</div>"


def end_openstax(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An open textbook's chapter: numbered exercise elements, then the Answer Key by number."""
    chapter = rng.randint(1, 14)
    out = [
        f"""<div data-type="page" class="chapter-content-module">
<h2 data-type="document-title">{rng.choice(_TOPICS)}</h2>
<section class="section-exercises"><h3 data-type="title">Section {chapter}.2 Exercises</h3>"""
    ]
    out += [
        f"""<div data-type="exercise" id="fs-id{gold.number}"><div data-type="problem">
<a class="os-number" href="#fs-id{gold.number}-solution">{gold.number}</a><span class="os-divider">. </span>
<div class="os-problem-container">{_p(gold.problem)}</div></div></div>"""
        for gold in exercises
    ]
    out.append("</section></div>")
    if any(gold.solution is not None for gold in exercises):
        out.append(f"""<div class="os-eob os-solution-container" data-type="composite-page">
<h2 data-type="document-title"><span class="os-text">Answer Key</span></h2>
<h3 data-type="title">Chapter {chapter}</h3>""")
        out += [
            f"""<div data-type="solution" id="fs-id{gold.number}-solution">
<a class="os-number" href="#fs-id{gold.number}">{gold.number}</a><span class="os-divider">. </span>
<div class="os-solution-container">{_p(gold.solution)}</div></div>"""
            for gold in exercises
            if gold.solution is not None
        ]
        out.append("</div>")
    return "\n".join(out) + '<div class="citation"><p>Creative Commons Attribution License.</p></div>'


def end_problem_sheet(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A lecturer's problem sheet: an ordered list, then the answers in a second list by number."""
    title = rng.choice(["Answers", "Solutions to the exercises", "Answers to the problems", "Solutions"])
    out = [
        f"""<h1>Problem Sheet {rng.randint(1, 10)}</h1>
<p><em>Due {_date(rng)}. Please write your name on every page.</em></p>
<h2>Problems</h2><ol class="problems">"""
    ]
    out += [f'<li value="{gold.number}" id="p{gold.number}">{_p(gold.problem)}</li>' for gold in exercises]
    out.append("</ol>\n<hr />")
    keys = [f'<li value="{g.number}">{_p(g.solution)}</li>' for g in exercises if g.solution is not None]
    if keys:
        out += [f'<h2 id="answers">{title}</h2>\n<ol class="answers">', *keys, "</ol>"]
    return "\n".join(out) + '<p><a href="index.html">Course home</a> | <a href="sheet.pdf">PDF</a></p>'


def toggle_jupyter_book(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Jupyter Book: exercise admonitions, each followed by a solution in a dropdown."""
    out = [
        """<section class="tex2jax_ignore mathjax_ignore" id="exercises">
<h1>Exercises<a class="headerlink" href="#exercises" title="Permalink to this heading">#</a></h1>"""
    ]
    for gold in exercises:
        n = gold.number
        out.append(f"""<div class="exercise admonition" id="ex-{n}">
<p class="admonition-title"><span class="caption-number">Exercise {n} </span></p>
<section id="exercise-content">{_p(gold.problem)}</section></div>""")
        out.append(
            _key(
                gold,
                f"""<div class="solution dropdown admonition"><details class="toggle-details">
<summary class="toggle-details__summary"><span>Click to show</span></summary>
<p class="admonition-title">Solution to<a class="reference internal" href="#ex-{n}"> Exercise {n}</a></p>
<section id="solution-content">""",
                "</section></details></div>",
            )
        )
    return (
        "\n".join(out)
        + f"""</section>
<div class="prev-next-area"><a class="left-prev" href="intro.html"><p class="prev-next-subtitle">previous</p>
<p class="prev-next-title">{rng.choice(_TOPICS)}</p></a></div>"""
    )


def toggle_bootstrap_card(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A school portal's cards: a button opens the collapse panel with the solution."""
    ask, reply = rng.choice([("Task", "solution"), ("Question", "answer"), ("Exercise", "solution")])
    out = [f'<div class="container"><ol class="breadcrumb"><li>{rng.choice(_TOPICS)}</li></ol>']
    for gold in exercises:
        n = gold.number
        out.append(f"""<div class="card mb-4" id="task-{n}"><div class="card-header">{ask} {n}
<span class="badge bg-secondary">{rng.choice(["basic", "standard", "challenge"])}</span></div>
<div class="card-body"><div class="card-text">{_p(gold.problem)}</div>""")
        out.append(
            _key(
                gold,
                f"""<button class="btn btn-primary" type="button" data-bs-toggle="collapse"
 data-bs-target="#sol{n}" aria-expanded="false" aria-controls="sol{n}">Show {reply}</button>
<div class="collapse" id="sol{n}"><div class="card card-body mt-2">""",
                "</div></div>",
            )
        )
        out.append('</div><div class="card-footer text-muted"><a href="#">Report a mistake</a></div></div>')
    return "\n".join(out) + "\n</div>"


def inline_textbook_blog(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutoring blog with textbook solutions: bold labels that open ordinary paragraphs."""
    ask = rng.choice(["Question {}.", "Q.{}", "Q{}.", "Example {}:", "Question {}:"])
    reply = rng.choice(["Answer:", "Solution:", "Ans:", "Sol.", "Ans."])
    gap = rng.choice([" ", "<br />\n"])
    out = [
        f"""<div class="entry-content clearfix"><p>Hello students! Here are the important questions of
{rng.choice(_TOPICS)}, prepared by our expert teachers.</p>"""
    ]
    for gold in exercises:
        out.append(_p(gold.problem, f"<strong>{ask.format(gold.number)}</strong>{gap}"))
        if gold.solution is not None:
            out.append(_p(gold.solution, f'<strong style="color: #008000;">{reply}</strong>{gap}'))
        if rng.random() < 0.25:
            out.append('<div class="code-block"><span class="ad-label">Advertisement</span></div>')
    return "\n".join(out) + '<div class="sharedaddy"><a href="#">Share on WhatsApp</a></div></div>'


def inline_list_items(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Practice notes: a list item an exercise, with italic or bold labels in its running text."""
    ask = rng.choice(["Problem {}.", "P{}.", "Exercise {}.", "Ex. {}:"])
    reply = rng.choice(["Solution.", "Answer.", "Solution:", "A:"])
    tag = rng.choice(["b", "i", "em"])
    out = [f'<div id="notes"><p class="date">Notes for week {rng.randint(1, 14)}</p>\n<ul class="plain">']
    for gold in exercises:
        key = "" if gold.solution is None else f"<br />\n<{tag}>{reply}</{tag}> {_br(gold.solution)}"
        out.append(f"<li><b>{ask.format(gold.number)}</b> {_br(gold.problem)}{key}</li>")
    return "\n".join(out) + f'\n</ul><p class="foot">&copy; {rng.choice(_NAMES)}, {_date(rng)}</p></div>'


LAYOUTS: dict[str, Style] = {
    "heading_contest_wiki": heading_contest_wiki,
    "heading_problem_of_week": heading_problem_of_week,
    "dl_item_bank": dl_item_bank,
    "dl_drupal_node": dl_drupal_node,
    "table_revision_rows": table_revision_rows,
    "table_exercise_card": table_exercise_card,
    "forum_question2answer": forum_question2answer,
    "forum_xenforo": forum_xenforo,
    "end_openstax": end_openstax,
    "end_problem_sheet": end_problem_sheet,
    "toggle_jupyter_book": toggle_jupyter_book,
    "toggle_bootstrap_card": toggle_bootstrap_card,
    "inline_textbook_blog": inline_textbook_blog,
    "inline_list_items": inline_list_items,
}
