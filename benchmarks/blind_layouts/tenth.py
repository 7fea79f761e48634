"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 10."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_TOKEN = re.compile(
    r"(?P<math>\$\$.+?\$\$|(?<!\\)\\\[.+?\\\]|(?<!\\)\\\(.+?\\\)"
    r"|\\begin\{(?P<env>[a-z]+\*?)\}.+?\\end\{(?P=env)\}"
    r"|(?<!\\)\$(?:(?!!\[[^\]]*\]\(|\n\s*\n)(?:[^$\\]|\\.))+\$)"
    r"|!\[(?P<alt>(?:(?!\n\s*\n).)*?)\]\((?P<src>(?:[^()\s]|\([^()\s]*\))+)\)",
    re.DOTALL,
)
_PEOPLE = (
    "mathlover92",
    "Priya S.",
    "t_okafor",
    "Hannah",
    "euler_fan",
    "Dr. Lindqvist",
    "j.marsh",
    "Nomi",
    "quarkster",
    "Old Tom",
    "kim_jw",
    "abacus7",
    "Ms Ferreira",
    "zetafn",
    "lostinspace",
    "R. Devlin",
)
_TOPICS = ("Algebra", "Mechanics", "Geometry", "Calculus", "Probability", "Number theory", "Electricity")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_GUESSES = (
    "I would say it is 42, but I did not check it.",
    "Not sure at all. Maybe you could just try a few small values and see what comes out?",
    "My calculator says roughly 3.7, so I guess that is it.",
    "Isn't this simply zero? The terms look like they cancel.",
    "We did something like that last year and the result was 12, I think.",
)


def _paragraphs(text: str) -> list[str]:
    """The HTML of each paragraph of a text, formulas whole and images as tags."""
    parts, last = [""], 0

    def plain(piece: str) -> None:
        first, *rest = re.split(r"\n[ \t]*(?:\n[ \t]*)+", piece)
        parts[-1] += html.escape(first, quote=False)
        parts.extend(html.escape(part, quote=False) for part in rest)

    for match in _TOKEN.finditer(text):
        plain(text[last : match.start()])
        if match["math"] is not None:
            parts[-1] += html.escape(match["math"], quote=False)
        else:
            parts[-1] += f'<img src="{html.escape(match["src"])}" alt="{html.escape(match["alt"])}">'
        last = match.end()
    plain(text[last:])
    return [part.strip() for part in parts if part.strip()]


def _ps(text: str, lead: str = "") -> str:
    """The text as <p> elements, the first one opening with `lead`."""
    parts = _paragraphs(text) or [""]
    parts[0] = lead + parts[0]
    return "\n".join(f"<p>{part}</p>" for part in parts)


def _brs(text: str) -> str:
    """The text with line breaks in place of paragraphs."""
    return "<br>\n<br>\n".join(_paragraphs(text))


def _date(rng: random.Random) -> str:
    """A day in the last years."""
    return f"{rng.choice(_MONTHS)} {rng.randint(1, 28)}, {rng.randint(2011, 2024)}"


def _answers(gold: Gold, exercises: Sequence[Gold], rng: random.Random) -> list[tuple[str, int, bool]]:
    """Answers of a thread as (text, votes, accepted): the gold one and wrong ones, or none at all."""
    if gold.solution is None:
        return []
    others = [e.solution for e in exercises if e.solution is not None and e.solution != gold.solution]
    wrong = rng.sample(_GUESSES, rng.randint(1, 2))
    if others and rng.random() < 0.6:
        wrong[0] = rng.choice(others)
    accepted = rng.random() < 0.7
    found = [(text, rng.randint(-1, 4), False) for text in wrong]
    found.append((gold.solution, rng.randint(1, 9) if accepted else rng.randint(6, 19), accepted))
    rng.shuffle(found)
    return found


def heading_sphinx_notes(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Sphinx lecture notes: nested sections with permalinks, Solution a heading below the exercise."""
    word, topic = rng.choice(("Exercise", "Problem")), rng.choice(_TOPICS)
    link = '<a class="headerlink" href="#{}" title="Permalink to this heading">¶</a>'
    out = [
        f"""<div class="rst-content"><div role="navigation" aria-label="Page navigation">
<ul class="wy-breadcrumbs"><li class="breadcrumb-item active">{topic}: exercises</li>
<li class="wy-breadcrumbs-aside"><a href="_sources/ch3.rst.txt"> View page source</a></li></ul><hr/></div>
<div role="main" class="document"><div itemprop="articleBody"><section id="exercises">
<h1>{topic}: exercises{link.format("exercises")}</h1>"""
    ]
    for e in exercises:
        name = f"{word.lower()}-{e.number}"
        out.append(f'<section id="{name}">\n<h2>{word} {e.number}{link.format(name)}</h2>\n{_ps(e.problem)}')
        if e.solution is not None:
            out.append(f'<section id="id{e.number}">\n<h3>Solution{link.format(f"id{e.number}")}</h3>')
            out.append(f"{_ps(e.solution)}\n</section>")
        out.append("</section>")
    out.append(f"""</section></div></div><footer><div class="rst-footer-buttons" role="navigation">
<a href="ch2.html" rel="prev">Previous</a> <a href="ch4.html" rel="next">Next</a></div><hr/>
<div role="contentinfo"><p>&#169; Copyright {rng.randint(2015, 2024)}, {rng.choice(_PEOPLE)}.</p></div>
Built with <a href="https://www.sphinx-doc.org/">Sphinx</a>.</footer></div>""")
    return "\n".join(out)


def heading_contest_wiki(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A MediaWiki contest page: Problem and Solution headlines with edit links, a table of contents."""

    def head(level: int, title: str, anchor: str) -> str:
        edit = f'<a href="/w/index.php?title=Round&amp;action=edit&amp;section={rng.randint(1, 60)}">edit</a>'
        return (
            f'<h{level}><span class="mw-headline" id="{anchor}">{title}</span>'
            f'<span class="mw-editsection">[{edit}]</span></h{level}>'
        )

    toc = "\n".join(
        f'<li class="toc1"><a href="#Problem_{e.number}"><span class="tocnumber">{i}</span> '
        f"Problem {e.number}</a></li>"
        for i, e in enumerate(exercises, 1)
    )
    out = [
        f"""<div id="bodyContent" class="mw-body-content"><div id="siteSub">From the Contest Wiki</div>
<div id="mw-content-text" lang="en" dir="ltr"><div class="mw-parser-output">
<div id="toc" class="toc"><div class="toctitle"><h2>Contents</h2></div><ul>{toc}</ul></div>"""
    ]
    for e in exercises:
        out += [head(2, f"Problem {e.number}", f"Problem_{e.number}"), _ps(e.problem)]
        if e.solution is not None:
            out += [head(3, "Solution", f"Solution_{e.number}"), _ps(e.solution)]
    out.append(f"""{head(2, "See also", "See_also")}
<ul><li><a href="/wiki/Past_rounds">Past rounds and answer sheets</a></li></ul></div></div>
<div id="catlinks" class="catlinks">Category: <a href="/wiki/Category:Rounds">Rounds</a></div>
<div class="printfooter">This page was last modified on {_date(rng)}.</div></div>""")
    return "\n".join(out)


def dl_question_bank(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A question bank: a description list a record, with topic, marks, question and solution."""
    ask, tell = rng.choice((("Question", "Worked solution"), ("Question", "Answer"), ("Problem", "Solution")))
    out = [
        f"""<div class="container"><nav aria-label="breadcrumb"><ol class="breadcrumb">
<li class="breadcrumb-item"><a href="/">Question bank</a></li><li>Results</li></ol></nav>
<p class="text-muted small">Showing {len(exercises)} of {rng.randint(120, 900)} records.</p>"""
    ]
    for e in exercises:
        fields = [
            ("No.", str(e.number)),
            ("Topic", rng.choice(_TOPICS)),
            ("Marks", str(rng.randint(2, 12))),
            ("Difficulty", rng.choice(("Easy", "Medium", "Hard"))),
            (ask, _ps(e.problem)),
        ]
        if e.solution is not None:
            fields.append((tell, _ps(e.solution)))
        fields.append(("Last used", f"<time>{_date(rng)}</time>"))
        out.append(f'<dl class="row record" id="rec{e.number}">')
        out += [f'<dt class="col-sm-3">{k}</dt>\n<dd class="col-sm-9">{v}</dd>' for k, v in fields]
        out.append('</dl>\n<button class="btn btn-sm">Add to paper</button>')
    return "\n".join([*out, "</div>"])


def dl_drupal_fields(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A Drupal problem archive: nodes whose fields have a label above and an item."""
    ask, tell = rng.choice((("Problem", "Solution"), ("Statement", "Solution"), ("Exercise", "Answer")))

    def field(name: str, label: str, item: str, where: str = "above") -> str:
        return (
            f'<div class="field field--name-field-{name} field--type-text-long field--label-{where}">\n'
            f'<div class="field__label">{label}</div>\n<div class="field__item">{item}</div>\n</div>'
        )

    out = ['<main role="main"><div class="view view-problems view-display-id-page_1">']
    for e in exercises:
        out.append(f"""<div class="views-row"><article class="node node--type-problem node--view-mode-full">
<h2 class="node__title"><a href="/problem/{e.number}" rel="bookmark">Problem of the week #{e.number}</a></h2>
<footer class="node__meta">Submitted by <span lang="">{rng.choice(_PEOPLE)}</span> on {_date(rng)}</footer>
<div class="node__content">""")
        out.append(field("level", "Level", rng.choice(("Junior", "Intermediate", "Senior")), "inline"))
        out.append(field("problem", ask, _ps(e.problem)))
        if e.solution is not None:
            out.append(field("solution", tell, _ps(e.solution)))
        out.append(field("tags", "Tags", f'<a href="/tags/7">{rng.choice(_TOPICS)}</a>', "inline"))
        out.append('<p><a href="/user/login">Log in</a> to post comments</p></div></article></div>')
    return "\n".join([*out, '</div><nav class="pager"><a href="?page=1">Next page ››</a></nav></main>'])


def table_worksheet_rows(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A worksheet table, an exercise a row: number, question, worked answer, marks."""
    heads = rng.choice((("No.", "Question", "Solution", "Marks"), ("#", "Problem", "Answer", "Points")))
    out = [
        f"""<div class="entry-content"><h1>{rng.choice(_TOPICS)} revision sheet</h1>
<p><a href="/files/sheet.pdf">Download as PDF</a> | <a href="javascript:print()">Print this page</a></p>
<figure class="wp-block-table is-style-stripes"><table><thead><tr>
{"".join(f"<th>{h}</th>" for h in heads)}</tr></thead><tbody>"""
    ]
    for e in exercises:
        told = "" if e.solution is None else _brs(e.solution)
        row = (str(e.number), _brs(e.problem), told, str(rng.randint(1, 8)))
        out.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>")
    return "\n".join([*out, f"</tbody></table><figcaption>Updated {_date(rng)}</figcaption></figure></div>"])


def table_record_each(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Exam archive: a table an exercise, the fields named by row headers."""
    ask, tell = rng.choice((("Question", "Model answer"), ("Problem", "Solution"), ("Task", "Solution")))
    out = [f'<div id="content"><h1>Past papers: {rng.choice(_TOPICS)}</h1>']
    for e in exercises:
        out.append(f"""<table class="exam-item" border="1" cellpadding="4" width="100%">
<tr><th colspan="2" bgcolor="#dde6f0">{ask} {e.number}</th></tr>
<tr><th scope="row" width="15%">Paper</th><td>Summer {rng.randint(2004, 2022)}</td></tr>
<tr><th scope="row">Time</th><td>{rng.choice((5, 10, 15, 20))} minutes</td></tr>
<tr><th scope="row">{ask}</th><td>{_ps(e.problem)}</td></tr>""")
        if e.solution is not None:
            out.append(f'<tr><th scope="row">{tell}</th><td>{_ps(e.solution)}</td></tr>')
        out.append(f'<tr><th scope="row">Author</th><td>{rng.choice(_PEOPLE)}</td></tr>\n</table>\n<br>')
    return "\n".join([*out, f"<address>Web master, {_date(rng)}</address></div>"])


def forum_q2a(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question2Answer threads with votes, user points and a best answer."""

    def votes(count: int) -> str:
        return (
            '<div class="qa-voting qa-voting-net"><span class="qa-netvote-count-data">'
            f'{count:+d}</span><span class="qa-netvote-count-pad"> votes</span></div>'
        )

    def meta(what: str) -> str:
        return (
            f'<span class="qa-post-meta"><span class="qa-what">{what}</span> <time>{_date(rng)}</time>'
            f' by <a class="qa-user">{rng.choice(_PEOPLE)}</a> ({rng.randint(1, 900)} points)</span>'
        )

    out = []
    for e in exercises:
        found = sorted(_answers(e, exercises, rng), key=lambda answer: not answer[2])
        out.append(f"""<div class="qa-main"><div class="qa-main-heading"><h1><a href="../{e.number}">
<span itemprop="name">Exercise {e.number}: how do I solve this?</span></a></h1></div>
<div class="qa-part-q-view"><div class="qa-q-view" id="q{e.number}">{votes(rng.randint(0, 5))}
<div class="qa-q-view-content qa-post-content"><div itemprop="text">{_ps(e.problem)}</div></div>
<ul class="qa-q-view-tag-list"><li><a class="qa-tag-link">{rng.choice(_TOPICS).lower()}</a></li></ul>
{meta("asked")}</div></div>
<div class="qa-part-a-list"><h2 id="a_list_title">{len(found)} Answers</h2>
<div class="qa-a-list" id="a_list">""")
        for text, count, accepted in found:
            chosen, prop, mark = "", "suggestedAnswer", ""
            if accepted:
                chosen, prop = " qa-a-list-item-selected", "suggestedAnswer acceptedAnswer"
                mark = '<div class="qa-a-selection"><div class="qa-a-selected-text">Best answer</div></div>'
            out.append(f"""<div class="qa-a-list-item{chosen}" itemprop="{prop}">{votes(count)}
<div class="qa-a-item-main">{mark}<div class="qa-a-item-content qa-post-content">
<div itemprop="text">{_ps(text)}</div></div>{meta("answered")}</div></div>""")
        out.append('</div></div><p>Please <a href="../login">log in</a> or register to answer.</p></div>')
    return "\n".join(out)


def forum_xenforo(exercises: Sequence[Gold], rng: random.Random) -> str:
    """XenForo question threads: messages with user cells, vote scores and a marked solution."""

    def message(text: str, place: int, score: int | None, accepted: bool) -> str:
        user = rng.choice(_PEOPLE)
        kind = " message--solution" if accepted else ""
        mark = '<div class="message-solutionLabel">✔ Solution</div>' if accepted else ""
        vote = (
            ""
            if score is None
            else (
                '<div class="message-cell message-cell--vote"><a class="contentVote-vote">Upvote</a> <span '
                f'class="contentVote-score">{score}</span> <a class="contentVote-vote">Downvote</a></div>'
            )
        )
        return f"""<article class="message message--post js-post{kind}" data-author="{user}">
<div class="message-cell message-cell--user"><h4 class="message-name"><a class="username">{user}</a></h4>
<h5 class="message-userTitle">{rng.choice(("New member", "Active member", "Homework helper"))}</h5>
<dl class="pairs"><dt>Messages</dt><dd>{rng.randint(1, 4000)}</dd></dl></div>
<div class="message-cell message-cell--main">{mark}<header class="message-attribution">
<time class="u-dt">{_date(rng)}</time> <a href="#post-{place}">#{place}</a></header>
<div class="message-content"><article class="message-body"><div class="bbWrapper">{_brs(text)}</div></article>
</div><footer class="message-footer"><a>Report</a> <a>Reply</a></footer></div>{vote}</article>"""

    out = []
    for e in exercises:
        found = _answers(e, exercises, rng)
        out.append(f"""<div class="p-body-content"><div class="p-title"><h1 class="p-title-value">
<span class="label">Question</span> {rng.choice(_TOPICS)} homework, problem {e.number}</h1></div>
<div class="p-description">Replies: {len(found)} · Views: {rng.randint(40, 3000)}</div>
<div class="block block--messages">""")
        out.append(message(e.problem, 1, None, False))
        out += [message(text, i, *vote) for i, (text, *vote) in enumerate(found, 2)]
        out.append('</div><div class="blockMessage">You must log in or register to reply here.</div></div>')
    return "\n".join(out)


def end_openstax_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A textbook companion: numbered problems, an answer key at the page's end linked back by number."""
    ask, tell = rng.choice((("Problems", "Answer Key"), ("Exercises", "Solutions"), ("Practice", "Answers")))

    def item(kind: str, number: int, here: str, there: str, text: str) -> str:
        return (
            f'<div data-type="{kind}" id="{here}-{number}"><a class="os-number" href="#{there}-{number}">'
            f'{number}</a><span class="os-divider">. </span><div class="{kind}">{_ps(text)}</div></div>'
        )

    key = [item("solution", e.number, "sol", "ex", e.solution) for e in exercises if e.solution is not None]
    out = [f'<div class="os-eoc"><h2 data-type="document-title">{ask}</h2><section class="review-problems">']
    out += [item("problem", e.number, "ex", "sol", e.problem) for e in exercises]
    out.append("</section></div>")
    if key:
        out += [f'<div class="os-eob"><h2 data-type="document-title">{tell}</h2>', *key, "</div>"]
    return "\n".join([*out, '<div class="nav"><a href="/toc">Contents</a> <a href="/next">Next</a></div>'])


def end_worksheet_bold(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A teacher's printable worksheet: bold numbers, and the same numbers under Answers after a rule."""
    stop = rng.choice((".", ")"))
    out = [
        f"""<div class="page-content"><h1>{rng.choice(_TOPICS)} practice</h1>
<p>Name: ______________ Class: ________</p><p><em>Show your work. The answers are at the end.</em></p>"""
    ]
    out += [f'<div class="q">{_ps(e.problem, f"<b>{e.number}{stop}</b> ")}</div>' for e in exercises]
    told = [(e.number, e.solution) for e in exercises if e.solution is not None]
    if told:
        out.append(f'<hr>\n<h2 id="key">{rng.choice(("Answers", "Answer key", "Solutions"))}</h2>')
        out += [f'<div class="a">{_ps(text, f"<b>{n}{stop}</b> ")}</div>' for n, text in told]
    return "\n".join([*out, f'<hr><p class="copy">© {rng.choice(_PEOPLE)}. Free for class use.</p></div>'])


def toggle_details_block(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutoring blog: the solution, and at times a hint, in details elements."""
    show = rng.choice(("Show solution", "Solution", "Click to reveal the solution", "View answer"))
    out = [
        f"""<article class="post"><h1 class="entry-title">{rng.choice(_TOPICS)} practice set</h1>
<span class="posted-on">Posted on {_date(rng)}</span> <span class="byline">by {rng.choice(_PEOPLE)}</span>
<div class="entry-content"><p>Try each one on your own before you open anything.</p>"""
    ]
    for e in exercises:
        out.append(f'<div class="practice"><p><strong>Problem {e.number}</strong></p>\n{_ps(e.problem)}')
        if rng.random() < 0.25:
            out.append("<details><summary>Hint</summary><p>Write down first what is given.</p></details>")
        if e.solution is not None:
            out.append(f'<details class="wp"><summary>{show}</summary>\n{_ps(e.solution)}\n</details>')
        out.append("</div>")
    return "\n".join([*out, '</div><p class="share">Share this: <a>X</a> <a>Facebook</a></p></article>'])


def toggle_collapse_card(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A course portal: cards whose button opens a Bootstrap collapse panel with the solution."""
    show = rng.choice(("Show answer", "Solution", "See the solution", "Reveal answer"))
    out = [f'<div class="container"><div class="alert">{rng.randint(2, 60)} students online now.</div>']
    for e in exercises:
        out.append(f"""<div class="card mb-3"><div class="card-header">Question {e.number}
<span class="badge">{rng.choice(_TOPICS)}</span> <span class="badge">{rng.randint(1, 9)} pts</span></div>
<div class="card-body"><div class="card-text">{_ps(e.problem)}</div>""")
        if e.solution is not None:
            out.append(f"""<button class="btn btn-primary" type="button" data-bs-toggle="collapse"
 data-bs-target="#sol{e.number}" aria-expanded="false" aria-controls="sol{e.number}">{show}</button>
<div class="collapse" id="sol{e.number}"><div class="card card-body">{_ps(e.solution)}</div></div>""")
        out.append('</div><div class="card-footer"><a href="#">Bookmark</a> <a>Report</a></div></div>')
    return "\n".join([*out, "</div>"])


def inline_blog_bold(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An exam-preparation post: paragraphs opening with bold Q and Ans labels."""
    ask, tell = rng.choice((("Q{}.", "Ans:"), ("Question {}:", "Answer:"), ("Q.{}", "Solution:")))
    out = [f'<div class="td-post-content"><p>Here are some important questions on {rng.choice(_TOPICS)}.</p>']
    for e in exercises:
        out.append(_ps(e.problem, f"<strong>{ask.format(e.number)}</strong> "))
        if e.solution is not None:
            out.append(_ps(e.solution, f"<strong>{tell}</strong> "))
        out.append('<div class="ads"><span>Advertisement</span></div>' if rng.random() < 0.2 else "")
    return "\n".join([*out, '<div class="sharing"><a>WhatsApp</a> <a>Telegram</a></div></div>'])


def inline_list_italic(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A professor's plain page: list items that open with a bold label and go on with an italic one."""
    word, tell = rng.choice((("Problem", "Solution."), ("Exercise", "Solution:"), ("Exercise", "Answer.")))
    out = [f"<h2>Homework {rng.randint(1, 12)}</h2>\n<p>Due {_date(rng)}, at the start of class.</p>\n<ul>"]
    for e in exercises:
        told = "" if e.solution is None else f"\n<br><br>\n<i>{tell}</i> {_brs(e.solution)}"
        out.append(f"<li><b>{word} {e.number}.</b> {_brs(e.problem)}{told}\n</li>")
    return "\n".join([*out, '</ul>\n<hr>\n<p><a href="index.html">Back to the course page</a></p>'])


LAYOUTS: dict[str, Style] = {
    style.__name__: style
    for style in (
        heading_sphinx_notes,
        heading_contest_wiki,
        dl_question_bank,
        dl_drupal_fields,
        table_worksheet_rows,
        table_record_each,
        forum_q2a,
        forum_xenforo,
        end_openstax_key,
        end_worksheet_bold,
        toggle_details_block,
        toggle_collapse_card,
        inline_blog_bold,
        inline_list_italic,
    )
}
