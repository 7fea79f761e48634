"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 18."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_TOKEN = re.compile(
    r"!\[(?P<alt>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<src>(?:[^()\n]|\([^()\n]*\))+)\)"
    r"|(?P<math>\$\$.+?\$\$|(?<!\\)\\\[.+?\\\]|(?<!\\)\\\(.+?\\\)"
    r"|\\begin\{(?P<env>[a-zA-Z]+\*?)\}.*?\\end\{(?P=env)\}"
    r"|(?<![\\$])\$(?:\\.|[^$\\\n]|\n(?![ \t]*\n))+\$)",
    re.DOTALL,
)
_NAMES = ("mathfan77", "Oksana_R", "prof_dimitri", "lee.wong", "JuneBug", "Tobias K.", "aditi_s", "quarkling")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Sep", "Oct", "Nov")
_TOPICS = ("Mechanics", "Algebra", "Sequences", "Geometry", "Probability", "Energy", "Functions", "Vectors")
_GUESSES = (
    "I'm not sure, but I think you just plug the numbers into the formula from the book.",
    "My calculator gives 42, so I would say 42.",
    "Isn't it simply zero? Everything cancels for me.",
    "Try drawing a picture first, then it is obvious that the answer is 12.",
)


def _paras(text: str) -> list[str]:
    """The paragraphs of a gold text as HTML, formulas whole, images as tags."""
    out, last, text = [""], 0, text.strip()

    def plain(part: str) -> None:
        first, *rest = (
            html.escape(piece, quote=False).replace("\n", "<br>\n")
            for piece in re.split(r"\n[ \t]*\n\s*", part)
        )
        out[-1] += first
        out.extend(rest)

    for match in _TOKEN.finditer(text):
        plain(text[last : match.start()])
        if match["math"] is not None:
            out[-1] += html.escape(match["math"], quote=False)
        else:
            out[-1] += f'<img src="{html.escape(match["src"])}" alt="{html.escape(match["alt"])}">'
        last = match.end()
    plain(text[last:])
    return [para.strip() for para in out if para.strip()]


def _cell(text: str) -> str:
    """The content of a cell or field: bare when it is one paragraph."""
    paras = _paras(text)
    return paras[0] if len(paras) == 1 else "".join(f"<p>{para}</p>" for para in paras)


def _body(text: str, lead: str = "") -> str:
    """Paragraph elements; `lead` opens the first of them."""
    paras = _paras(text) or [""]
    return "\n".join(f"<p>{para}</p>" for para in [f"{lead} {paras[0]}".strip(), *paras[1:]])


def _sol(ex: Gold, before: str, after: str = "", lead: str = "") -> str:
    """The solution between its wrappers, or nothing where there is none."""
    return "" if ex.solution is None else f"\n{before}\n{_body(ex.solution, lead)}{after}"


def _date(rng: random.Random) -> str:
    return f"{rng.choice(_MONTHS)} {rng.randint(1, 28)}, {rng.randint(2009, 2024)}"


def _wrong(ex: Gold, exercises: Sequence[Gold], rng: random.Random) -> list[str]:
    """One to three wrong answers: solutions of other exercises, or guesses."""
    others = [e.solution for e in exercises if e.solution is not None and e.solution != ex.solution]
    found = rng.sample(_GUESSES, rng.randint(1, 2))
    if others:
        found[0 if rng.random() < 0.3 else len(found) :] = [rng.choice(others)]
    return found


def _thread(ex: Gold, exercises: Sequence[Gold], rng: random.Random) -> list[tuple[str, int, bool]]:
    """Answers as (text, votes, accepted); the gold one is accepted or has the most votes."""
    if ex.solution is None:
        return []
    accepted, gold = rng.random() < 0.6, rng.randint(4, 19)
    most = gold + 4 if accepted else gold - 2
    answers = [(text, rng.randint(-2, most), False) for text in _wrong(ex, exercises, rng)]
    answers.append((ex.solution, gold, accepted))
    rng.shuffle(answers)
    return answers


def heading_wiki(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A MediaWiki page of a contest archive: section headings with edit links and a contents box."""
    edit = """<span class="mw-editsection">[<a href="/wiki/index.php?action=edit">edit</a>]</span>"""
    toc = "".join(
        f"""\n<li class="toclevel-1"><a href="#Problem_{e.number}">
<span class="toctext">Problem {e.number}</span></a></li>"""
        for e in exercises
    )
    out = f"""<div class="mw-body-content"><div class="mw-parser-output"><div id="toc" class="toc">
<div class="toctitle"><h2>Contents</h2></div><ul>{toc}</ul></div>"""
    for ex in exercises:
        n = ex.number
        head = f"""<h3><span class="mw-headline" id="Solution_{n}">Solution</span>{edit}</h3>"""
        out += f"""\n<h2><span class="mw-headline" id="Problem_{n}">Problem {n}</span>{edit}</h2>
{_body(ex.problem)}{_sol(ex, head)}"""
    return (
        out
        + f"""\n<h2><span class="mw-headline" id="See_also">See also</span>{edit}</h2>
<ul><li><a href="/wiki/Category:{rng.choice(_TOPICS)}_problems">Similar problems</a></li></ul>
<div class="printfooter">Retrieved from "<a href="/wiki/">the problem wiki</a>"</div></div></div>"""
    )


def heading_course_notes(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Static-site course notes: exercise headings with permalinks, a model answer under its own heading."""
    label = rng.choice(("Model answer", "Worked solution", "Solution"))
    out = f"""<main class="td-main"><article class="td-content">
<h1>Tutorial {rng.randint(2, 11)}: {rng.choice(_TOPICS)}</h1>
<div class="article-meta"><time>{_date(rng)}</time> &middot; {rng.randint(4, 25)} min read</div>"""
    for ex in exercises:
        n = ex.number
        link = '<a class="td-heading-self-link" href="#{}-{}" aria-label="Heading self-link">#</a>'
        out += f"""\n<h3 id="exercise-{n}">Exercise {n} {link.format("exercise", n)}</h3>
{_body(ex.problem)}"""
        if rng.random() < 0.3:
            out += f"""\n<h4 id="hint-{n}">Hint</h4><p>Look again at the second example of the lecture.</p>"""
        out += _sol(ex, f"""<h4 id="solution-{n}">{label} {link.format("solution", n)}</h4>""") + "\n<hr>"
    return (
        out
        + f"""\n<div class="td-page-meta"><a href="/notes/edit">Edit this page</a>
</div><p class="td-lastmod">Last modified {_date(rng)}</p></article></main>"""
    )


def dl_question_record(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A question bank: each record a description list of its fields."""
    solved = rng.choice(("Worked solution", "Model solution", "Answer"))
    out = f"""<div id="records"><p class="count">{len(exercises)} items found</p>"""
    for ex in exercises:
        fields = [
            ("Question no.", str(ex.number)),
            ("Topic", rng.choice(_TOPICS)),
            ("Marks", str(rng.randint(2, 12))),
            ("Question", _cell(ex.problem)),
        ]
        fields += [] if ex.solution is None else [(solved, _cell(ex.solution))]
        fields.append(("Last reviewed", _date(rng)))
        rows = "\n".join(f'<dt class="col-sm-3">{k}</dt><dd class="col-sm-9">{v}</dd>' for k, v in fields)
        out += f"""\n<div class="record" id="item{ex.number}"><dl class="row">\n{rows}\n</dl>
<a class="btn btn-sm btn-outline-secondary" href="#">Add to my test</a>
<a class="btn btn-sm btn-link" href="#">Report an error</a></div>"""
    return out + "\n</div>"


def dl_cms_fields(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Drupal nodes in a view: labelled fields for the problem and its solution."""

    def field(name: str, label: str, content: str) -> str:
        return f"""<div class="field field--name-field-{name} field--label-above">
<div class="field__label">{label}</div>\n<div class="field__item">{content}</div></div>\n"""

    out = '<div class="view view-problem-of-the-week"><div class="view-content">'
    for ex in exercises:
        n = ex.number
        out += f"""\n<div class="views-row"><article class="node node--type-potw" data-history-node-id="{n}">
<h2 class="node__title"><a href="/potw/{n}" rel="bookmark"><span>Problem of the Week {n}</span></a></h2>
<div class="node__submitted">Submitted by <span lang="">{rng.choice(_NAMES)}</span> on {_date(rng)}</div>
<div class="node__content">{field("grade", "Grade level", str(rng.randint(7, 12)))}"""
        out += field("problem", "Problem", _body(ex.problem))
        out += "" if ex.solution is None else field("solution", "Solution", _body(ex.solution))
        out += field("tags", "Tags", f'<a href="/taxonomy/term/{n + 7}">{rng.choice(_TOPICS)}</a>')
        out += """</div><a href="/user/login">Log in</a> to post comments</article></div>"""
    return out + """\n</div><nav class="pager"><a href="?page=1">Next page &rsaquo;</a></nav></div>"""


def table_block_rows(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A school blog's table: a row an exercise, with columns for the problem and its solution."""
    empty = rng.choice(("", "&nbsp;", "&mdash;"))
    head = rng.choice((("No.", "Question", "Solution"), ("#", "Problem", "Answer"), ("Nr", "Task", "Answer")))
    out = f"""<h2>Revision sheet: {rng.choice(_TOPICS)}</h2>
<figure class="wp-block-table is-style-stripes"><table class="has-fixed-layout">
<thead><tr><th>{head[0]}</th><th>{head[1]}</th><th>Level</th><th>{head[2]}</th></tr></thead><tbody>"""
    for ex in exercises:
        solution = empty if ex.solution is None else _cell(ex.solution)
        out += f"""\n<tr><td>{ex.number}</td><td>{_cell(ex.problem)}</td>
<td>{rng.choice(("Easy", "Medium", "Hard", "&#9733;&#9733;"))}</td><td>{solution}</td></tr>"""
    return (
        out
        + """\n</tbody></table><figcaption>Print in landscape format.</figcaption></figure>
<div class="sharedaddy"><a href="#">Tweet</a> <a href="#">Share on Facebook</a></div>"""
    )


def table_markscheme(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An exam archive: a two-column table an exercise, the row headers name the parts."""
    label = rng.choice(("Mark scheme", "Markscheme solution", "Solution"))
    out = f"""<p>Paper {rng.randint(1, 3)}, May {rng.randint(2005, 2023)}. Calculators are allowed.</p>"""
    for ex in exercises:
        out += f"""\n<table class="qtable" width="100%" border="1" cellpadding="4" id="q{ex.number}">
<tr bgcolor="#dde6f0"><td colspan="2"><b>Question {ex.number}</b>
<span style="float:right">[Maximum mark: {rng.randint(3, 14)}]</span></td></tr>
<tr><th scope="row" valign="top">Question</th><td>{_body(ex.problem)}</td></tr>
<tr><th scope="row">Syllabus</th><td>{rng.randint(1, 8)}.{rng.randint(1, 9)}</td></tr>
{_sol(ex, f'<tr><th scope="row" valign="top">{label}</th><td>', "</td></tr>")}
</table><p align="right"><small><a href="#top">Back to top</a></small></p>"""
    return out


def forum_question2answer(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question2Answer threads: net votes, a best answer badge, comments and tags."""

    def votes(count: int) -> str:
        return f"""<div class="qa-voting qa-voting-net"><div class="qa-vote-count"><span
class="qa-netvote-count-data">{count:+d}</span><span class="qa-netvote-count-pad"> votes</span></div></div>"""

    def meta(kind: str, what: str) -> str:
        return f"""<span class="qa-{kind}-avatar-meta"><span class="qa-{kind}-meta">
<span class="qa-{kind}-what">{what}</span> <span class="qa-{kind}-when">{_date(rng)}</span> by
<a href="#" class="qa-user-link">{rng.choice(_NAMES)}</a> ({rng.randint(1, 90) * 20} points)</span></span>"""

    out = ""
    for ex in exercises:
        answers = _thread(ex, exercises, rng)
        title = f"{len(answers)} Answers" if answers else "Please log in or register to answer this question."
        out += f"""<div class="qa-main"><div class="qa-main-heading"><h1><a href="#"><span itemprop="name">
{rng.choice(("Exercise", "Problem"))} {ex.number}: please help me with this one</span></a></h1></div>
<div class="qa-part-q-view"><div class="qa-q-view" id="q{ex.number}"><div class="qa-q-view-stats">
{votes(rng.randint(0, 6))}<span class="qa-view-count">{rng.randint(20, 900)} views</span></div>
<div class="qa-q-view-main"><div class="qa-q-view-content qa-post-content"><div itemprop="text">
{_body(ex.problem)}</div></div><div class="qa-q-view-tags"><ul class="qa-q-view-tag-list"><li>
<a href="#" rel="tag" class="qa-tag-link">{rng.choice(_TOPICS).lower()}</a></li></ul></div>
{meta("q-view", "asked")}</div></div></div>
<div class="qa-part-a-list"><h2 id="a_list_title">{title}</h2><div class="qa-a-list" id="a_list">"""
        for index, (text, score, best) in enumerate(answers):
            badge = (
                """<div class="qa-a-selection"><div class="qa-a-selected">&nbsp;</div>
<div class="qa-a-selected-text">Best answer</div></div>"""
                if best
                else ""
            )
            out += f"""\n<div class="qa-a-list-item hentry answer{" qa-a-list-item-selected" * best}"
id="a{ex.number}{index}">{votes(score)}<div class="qa-a-item-main">{meta("a-item", "answered")}{badge}
<div class="qa-a-item-content qa-post-content"><div itemprop="text">{_body(text)}</div></div>"""
            if rng.random() < 0.3:
                out += f"""\n<div class="qa-a-item-c-list"><div class="qa-c-list-item hentry comment">
<div class="qa-c-item-content">Thanks for taking the time!</div>{meta("c-item", "commented")}</div></div>"""
            out += "</div></div>"
        out += "</div></div></div>\n"
    return out


def forum_question_threads(exercises: Sequence[Gold], rng: random.Random) -> str:
    """XenForo question threads: posts with user columns, vote scores and a solution mark."""

    def post(text: str, number: int, score: int | None, solved: bool) -> str:
        user, rank = rng.choice(_NAMES), rng.choice(("New member", "Active member", "Staff member"))
        mark = '<span class="solutionIcon" title="This post is the solution">Solution</span>' * solved
        vote = (
            ""
            if score is None
            else f"""<div class="message-cell--vote"><a class="contentVote-link">
Upvote</a><span class="contentVote-score">{score}</span><a class="contentVote-link">Down</a>{mark}</div>"""
        )
        return f"""\n<article class="message message--post js-post{" message--solution" * solved}"
data-author="{user}"><div class="message-inner"><div class="message-cell message-cell--user">
<h4 class="message-name"><a class="username">{user}</a></h4><h5 class="userTitle">{rank}</h5></div>{vote}
<div class="message-cell message-cell--main"><header class="message-attribution"><time>{_date(rng)}</time>
<a class="message-permalink">#{number}</a></header>
<div class="message-body js-selectToQuote"><div class="bbWrapper">{_body(text)}</div></div>
<footer class="message-footer"><a>Report</a> <a>Reply</a></footer></div></div></article>"""

    out = ""
    for ex in exercises:
        answers = _thread(ex, exercises, rng)
        mark = '<span class="label label--green">Solved</span> ' * any(best for _, _, best in answers)
        out += f"""<div class="p-title"><h1 class="p-title-value">{mark}HW Problem {ex.number}</h1></div>
<div class="block block--messages"><div class="block-body">{post(ex.problem, 1, None, False)}</div></div>"""
        if answers:
            posts = "".join(post(text, i, score, best) for i, (text, score, best) in enumerate(answers, 2))
            out += f"""\n<div class="block-outer">Sort by date <a href="#">Sort by votes</a></div>
<div class="block block--messages"><div class="block-body">{posts}</div></div>"""
        out += '\n<div class="block-outer">You must log in or register to reply here.</div>\n'
    return out


def end_textbook_section(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A PreTeXt-like textbook section: numbered exercises, their solutions in a closing section."""
    head = '<h4 class="heading"><span class="codenumber">{}<span class="period">.</span></span></h4>'
    tasks = "".join(
        f"""\n<article class="exercise exercise-like" id="ex-{ex.number}">{head.format(ex.number)}
{_body(ex.problem)}</article>"""
        for ex in exercises
    )
    out = f"""<section><h3>Exercises {rng.randint(1, 9)}.{rng.randint(1, 6)}</h3>{tasks}</section>"""
    key = "".join(
        _sol(
            ex,
            f"""<article class="exercise" id="sol-{ex.number}">{head.format(ex.number)}
<div class="solution solution-like">""",
            "</div></article>",
        )
        for ex in exercises
    )
    if key:
        title = rng.choice(("Solutions to Selected Exercises", "Solutions to the Exercises"))
        out += f"""\n<section class="solutions"><h3 class="heading">{title}</h3>{key}</section>"""
    return out + """\n<nav class="bottom-nav"><a>Prev</a> <a>Up</a> <a>Next</a></nav>"""


def end_worksheet_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A printable worksheet: an ordered list of problems and an ordered answer key below."""
    tasks = "\n".join(f'<li value="{ex.number}">{_cell(ex.problem)}</li>' for ex in exercises)
    key = "\n".join(
        f'<li value="{ex.number}">{_cell(ex.solution)}</li>' for ex in exercises if ex.solution is not None
    )
    out = f"""<div class="worksheet"><div class="ws-header">Name: __________ Date: ________ Score: ____</div>
<h1>{rng.choice(_TOPICS)} Worksheet</h1><p><i>Show all your work on a separate sheet.</i></p>
<ol class="ws-problems">\n{tasks}\n</ol>"""
    if key:
        out += f"""\n<h2 class="page-break">{rng.choice(("Answer Key", "Answers", "Worksheet Answers"))}</h2>
<ol class="ws-key">\n{key}\n</ol>"""
    return out + f"""\n<p class="ws-footer">&copy; {rng.randint(2008, 2024)} The Worksheet Shelf</p></div>"""


def toggle_book_dropdown(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A Jupyter Book chapter: exercise admonitions, the solutions in dropdown details."""
    out = f"""<section id="exercises"><h2>Exercises<a class="headerlink" href="#exercises" title="Link to this
heading">#</a></h2><p>The exercises take about {rng.randint(2, 5) * 15} minutes in total.</p>"""
    for ex in exercises:
        n = ex.number
        out += f"""\n<div class="exercise admonition" id="ex-{n}"><p class="admonition-title">
<span class="caption-number">Exercise {n} </span></p><section id="exercise-content">
{_body(ex.problem)}</section></div>"""
        out += _sol(
            ex,
            f"""<details class="sd-sphinx-override sd-dropdown sd-card sd-mb-3">
<summary class="sd-summary-title sd-card-header"><span class="sd-summary-text">Solution to Exercise {n}</span>
</summary><div class="sd-summary-content sd-card-body">""",
            "</div></details>",
        )
    return out + """\n</section><div class="prev-next-area"><a href="#">previous</a></div>"""


def toggle_collapse_cards(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Bootstrap cards of a tutoring portal: buttons open collapse panels with hint and solution."""
    show = rng.choice(("Show solution", "View worked solution", "Reveal answer"))
    out = '<div class="container practice-set">'
    for ex in exercises:
        n = ex.number
        out += f"""\n<div class="card mb-4" id="question-{n}"><div class="card-header d-flex">
<strong>Question {n}</strong><span class="badge bg-info ms-auto">{rng.choice(_TOPICS)}</span></div>
<div class="card-body"><div class="question-text">{_body(ex.problem)}</div>"""
        if rng.random() < 0.4:
            out += f"""\n<button class="btn" data-bs-toggle="collapse" data-bs-target="#hint{n}">Hint
</button><div class="collapse" id="hint{n}"><div class="card card-body">Write down the givens.</div></div>"""
        out += _sol(
            ex,
            f"""<button class="btn btn-primary" type="button" data-bs-toggle="collapse"
data-bs-target="#solution{n}" aria-expanded="false" aria-controls="solution{n}">{show}</button>
<div class="collapse" id="solution{n}"><div class="card card-body">""",
            "</div></div>",
        )
        out += f"""\n</div><div class="card-footer">{rng.randint(30, 99)}% of pupils solved it</div></div>"""
    return out + "\n</div>"


def inline_blog_bold(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutoring blog: bold question and answer labels that open paragraphs."""
    ask, reply = rng.choice((("Q{}.", "Ans:"), ("Question {}:", "Answer:"), ("Q.{}", "Sol:")))
    out = f"""<div class="entry-content"><p>Important questions: {rng.choice(_TOPICS)}</p>"""
    for ex in exercises:
        out += "\n" + _body(ex.problem, f"<strong>{ask.format(ex.number)}</strong>")
        out += _sol(ex, "", lead=f"<strong>{reply}</strong>")
        if rng.random() < 0.2:
            out += """\n<div class="ad-slot"><ins class="adsbygoogle">Advertisement</ins></div>"""
    return out + """\n<p class="post-tags">Filed under: <a href="#" rel="category tag">Exams</a></p></div>"""


def inline_list_items(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A lecturer's plain page: list items whose run-in labels open the problem and its solution."""
    word, solved = rng.choice((("Problem", "Solution."), ("Exercise", "Solution."), ("Problem", "Answer.")))
    out = f"""<p>Problem set {rng.randint(1, 12)}, due {_date(rng)}, at the beginning of class.</p>
<ul style="list-style-type:none">"""
    for ex in exercises:
        out += f"\n<li>{_body(ex.problem, f'<b>{word} {ex.number}.</b>')}"
        out += _sol(ex, "", "</li>", f"<i>{solved}</i>") or "</li>"
    return out + f"""\n</ul>\n<address>Office hours: Tue 14-16, room {rng.randint(101, 420)}</address>"""


LAYOUTS: dict[str, Style] = {
    "heading_wiki": heading_wiki,
    "heading_course_notes": heading_course_notes,
    "dl_question_record": dl_question_record,
    "dl_cms_fields": dl_cms_fields,
    "table_block_rows": table_block_rows,
    "table_markscheme": table_markscheme,
    "forum_question2answer": forum_question2answer,
    "forum_question_threads": forum_question_threads,
    "end_textbook_section": end_textbook_section,
    "end_worksheet_key": end_worksheet_key,
    "toggle_book_dropdown": toggle_book_dropdown,
    "toggle_collapse_cards": toggle_collapse_cards,
    "inline_blog_bold": inline_blog_bold,
    "inline_list_items": inline_list_items,
}
