"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 20."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
_DISPLAY = re.compile(r"\$\$.+?\$\$|(?<!\\)\\\[.+?\\\]|\\begin\{(\w+\*?)\}.+?\\end\{\1\}", re.DOTALL)
_PEOPLE = ("mkowalski", "Priya_R", "tetrahedron", "J. Halvorsen", "oldgoat", "lin.zhao", "quark77")
_TOPICS = ("Algebra", "Geometry", "Number theory", "Kinematics", "Probability", "Calculus", "Stoichiometry")
_MONTHS = ("January", "March", "April", "June", "September", "October", "December")
_GUESSES = (
    "I would just try small numbers until something fits.",
    "Pretty sure it is 42. My calculator agrees.",
    "We did something similar last year, I got -3 then.",
    "Is this not simply zero by symmetry?",
)


def _inline(text: str) -> str:
    """Escape a text and turn its images into img elements."""
    out, last = [], 0
    for found in _IMAGE.finditer(text):
        out.append(html.escape(text[last : found.start()], quote=False))
        out.append(f'<img src="{html.escape(found[2])}" alt="{html.escape(found[1])}" />')
        last = found.end()
    return "".join(out) + html.escape(text[last:], quote=False)


def _blocks(text: str) -> list[str]:
    """The paragraphs of a text as HTML, displayed formulas whole."""
    cuts, spans = [0], [found.span() for found in _DISPLAY.finditer(text)]
    for gap in re.finditer(r"\n[ \t]*(?:\n[ \t]*)+", text):
        if not any(a < gap.start() < b for a, b in spans):
            cuts += [gap.start(), gap.end()]
    cuts.append(len(text))
    parts = [text[a:b].strip("\n") for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
    return [_inline(part) for part in parts if part.strip()]


def _el(tag: str, *parts: str, cls: str = "", **attrs: str) -> str:
    """An element around its parts; a tag "ul.a b>li" nests two, the attributes at the inner one."""
    *outer, tag = tag.split(">")
    tag, _, own = tag.partition(".")
    attrs = {"class": cls or own, **attrs} if cls or own else attrs
    opened = "".join(f' {key.replace("_", "-")}="{html.escape(value)}"' for key, value in attrs.items())
    element = f"<{tag}{opened}>{''.join(parts)}</{tag}>"
    return _el(">".join(outer), element) if outer else element


def _paras(text: str, lead: str = "", **attrs: str) -> str:
    """Paragraph elements; the lead opens the first one."""
    first, *more = _blocks(text) or [""]
    return "\n".join(_el("p", block, **attrs) for block in (lead + first, *more))


def _date(rng: random.Random) -> str:
    """A day."""
    return f"{rng.choice(_MONTHS)} {rng.randint(1, 28)}, {rng.randint(2009, 2024)}"


def _replies(exercises: Sequence[Gold], gold: Gold, rng: random.Random) -> list[tuple[str, int, bool]]:
    """The answers of a thread as (text, votes, accepted), in the order of the page."""
    if gold.solution is None:
        return []
    others = [e.solution for e in exercises if e.solution and e.solution.strip() != gold.solution.strip()]
    wrong: list[str] = []
    for _ in range(rng.randint(1, 3)):
        text = rng.choice(others) if others and rng.random() < 0.5 else rng.choice(_GUESSES)
        if text not in wrong:
            wrong.append(text)
    answers = [(text, rng.randint(-2, 5), False) for text in wrong]
    accepted = rng.random() < 0.6
    votes = rng.randint(0, 9) if accepted else max(v for _, v, _ in answers) + rng.randint(1, 8)
    answers.insert(rng.randint(0, len(answers)), (gold.solution, votes, accepted))
    return answers


def heading_docusaurus(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A Docusaurus page of course notes with anchored headings."""
    word, reply = rng.choice((("Exercise", "Solution"), ("Problem", "Answer"), ("Practice", "Solution")))

    def head(tag: str, text: str) -> str:
        slug = f"{text.lower().replace(' ', '-')}-{rng.randint(1, 999)}"
        link = _el("a.hash-link", "\u200b", href=f"#{slug}", title=f"Direct link to {text}")
        return _el(tag + ".anchor anchorWithStickyNavbar_LWe7", text, link, id=slug)

    crumbs = [_el("li.breadcrumbs__item>a", t, href="/") for t in ("Home", rng.choice(_TOPICS))]
    out = [_el("header>h1", "Exercises"), "<p>Try each of these on paper before you scroll down.</p>"]
    for gold in exercises:
        out += [head("h2", f"{word} {gold.number}"), _paras(gold.problem)]
        if gold.solution is not None:
            out += [head("h3", reply), _paras(gold.solution)]
    edit = _el("a.theme-edit-this-page", "Edit this page", href="/edit")
    return "\n".join(
        (
            _el("nav.theme-doc-breadcrumbs>ul.breadcrumbs", *crumbs),
            _el("div.theme-doc-markdown markdown", "\n".join(out)),
            _el("footer.theme-doc-footer", edit, _el("span", f"Last updated on <b>{_date(rng)}</b>")),
            _el("nav.pagination-nav>a.pagination-nav__link>div.pagination-nav__label", "Next: Summary"),
        )
    )


def heading_problem_of_week(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A WordPress archive of problems of the week."""
    out = [_el("header.page-header>h1", "Archive: <span>Problem of the Week</span>")]
    for gold in exercises:
        who = rng.sample(_PEOPLE, 2)
        title = _el("h2.entry-title>a", f"Problem of the Week {gold.number}", href=f"/potw/{gold.number}/")
        meta = _el("span.posted-on", f"Posted on <time>{_date(rng)}</time>")
        body = [_paras(gold.problem)]
        if gold.solution is None:
            body.append(_el("p.potw-deadline>em", f"Send your solution to us by {_date(rng)}."))
        else:
            body += [_el("h3.wp-block-heading", "Solution"), _paras(gold.solution)]
            body += [_el("h3.wp-block-heading", "Solvers"), f"<p>{who[0]}, {who[1]}</p>"]
        share = _el("ul", '<li><a href="#tw">Twitter</a></li>', '<li><a href="#fb">Facebook</a></li>')
        body.append(_el("div.sharedaddy sd-sharing-enabled", '<h3 class="sd-title">Share this:</h3>', share))
        foot = _el("span.cat-links", f'Posted in <a href="/c">{rng.choice(_TOPICS)}</a>')
        parts = [_el("header.entry-header", title, _el("div.entry-meta", meta))]
        parts += [_el("div.entry-content", "\n".join(body)), _el("footer.entry-footer", foot)]
        out.append(_el("article.post type-post hentry category-potw", "\n".join(parts)))
    out.append(_el("nav.navigation posts-navigation", '<a href="/page/2">Older posts</a>'))
    return _el("main.site-main", "\n".join(out), id="main")


def dl_bank_record(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Records of a question bank as Bootstrap description lists."""
    ask, reply = rng.choice((("Statement", "Solution"), ("Question", "Model answer"), ("Problem", "Answer")))
    out = [_el("p.text-muted", f'{len(exercises)} records found. <a href="?export=csv">Export</a>')]
    for gold in exercises:
        rows = [("Record ID", f"QB-{rng.randint(10000, 99999)}"), ("Number", str(gold.number))]
        rows.append(("Difficulty", _el("span.badge bg-secondary", rng.choice(("easy", "medium", "hard")))))
        rows.append((ask, _paras(gold.problem)))
        if gold.solution is not None:
            rows.append((reply, _paras(gold.solution)))
        rows += [("Added by", rng.choice(_PEOPLE)), ("Last modified", _date(rng))]
        body = [_el("dt", k, cls="col-sm-3") + "\n" + _el("dd", v, cls="col-sm-9") for k, v in rows]
        out.append(_el("div.card mb-4>div.card-body>dl.row", "\n".join(body)))
    return _el("div", "\n".join(out), cls="container")


def dl_drupal_fields(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Drupal nodes of a school portal, a labelled field each."""

    def field(name: str, label: str, value: str) -> str:
        parts = _el("div.field__label", label) + "\n" + _el("div.field__item", value)
        return _el(f"div.field field--name-field-{name} field--label-above", parts)

    out = []
    for gold in exercises:
        fields = [field("number", "Exercise number", str(gold.number))]
        fields.append(field("grade", "Grade", f"Year {rng.randint(7, 12)}"))
        fields.append(field("task", "Task", _paras(gold.problem)))
        if gold.solution is not None:
            fields.append(field("solution", "Solution", _paras(gold.solution)))
        fields.append(field("tags", "Tags", _el("a", rng.choice(_TOPICS), href="/tags/1", hreflang="en")))
        node = _el("div.node__content", "\n".join(fields))
        node += _el("ul.links inline>li", '<a href="/user/login">Log in</a> to post comments')
        out.append(_el("div.views-row>article.node node--type-exercise", node, role="article"))
    return _el("div.view view-exercises>div.view-content", "\n".join(out))


def table_mark_scheme(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A revision table, a row for each exercise."""
    names = ("No.", "Question", rng.choice(("Worked solution", "Answer", "Model solution")), "Marks", "Topic")
    blank = rng.choice(("", "&mdash;", "&nbsp;"))
    rows = []
    for gold in exercises:
        solution = blank if gold.solution is None else _paras(gold.solution)
        cells = (_paras(gold.problem), solution, str(rng.randint(1, 8)), rng.choice(_TOPICS))
        rows.append(_el("tr", _el("th", str(gold.number), scope="row"), *(_el("td", c) for c in cells)))
    caption = f"<caption>Paper {rng.randint(1, 3)}, {rng.choice(_MONTHS)} series</caption>\n"
    head = _el("thead>tr", *(_el("th", name, scope="col") for name in names)) + "\n"
    body = _el("tbody", "\n".join(rows))
    table = _el("div.table-responsive>table.table table-striped", caption, head, body)
    return table + "\n" + _el("p.small", '<a href="scheme.pdf">Download as PDF</a>')


def table_word_export(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A worksheet saved from Word, a bordered table for each exercise."""
    style = {"cls": "MsoNormal", "style": "margin-bottom:0cm"}
    border = {"valign": "top", "style": "border:solid windowtext 1.0pt;padding:0cm 5.4pt 0cm 5.4pt"}

    def row(label: str, value: str) -> str:
        return _el("tr", _el("td", _el("p", _el("b", label), **style), **border), _el("td", value, **border))

    out = [_el("p", f"<b>Name: ______________ &nbsp; Class: {rng.randint(8, 12)}B</b>", **style)]
    for gold in exercises:
        head = _el("p", _el("b", _el("span", f"Exercise {gold.number}", lang="EN-GB")), **style)
        rows = [_el("tr", _el("td", head, colspan="2", **border))]
        rows.append(row("Problem", _paras(gold.problem, **style)))
        if gold.solution is not None:
            rows.append(row("Solution", _paras(gold.solution, **style)))
        rows.append(row("Time", _el("p", f"{rng.randint(3, 20)} minutes", **style)))
        out.append(_el("table", "\n".join(rows), cls="MsoTableGrid", border="1", cellspacing="0"))
        out.append(_el("p", "&nbsp;", **style))
    return _el("div", "\n".join(out), cls="WordSection1")


def forum_xenforo(exercises: Sequence[Gold], rng: random.Random) -> str:
    """XenForo question threads with vote counts and a marked solution."""

    def post(text: str, votes: int | None, accepted: bool) -> str:
        who, vote, kind = rng.choice(_PEOPLE), "", "message--post"
        if votes is not None:
            kind = "message--answer message--solution" if accepted else "message--answer"
            score = _el("span.contentVote-score js-voteCount", str(votes), data_score=str(votes))
            up, down = _el("a.contentVote-vote", "Upvote"), _el("a.contentVote-vote", "Downvote")
            mark = _el("span.solutionIcon is-solution", "Solution") if accepted else ""
            vote = _el("div.message-cell--vote", _el("div.contentVote", up, score, down), mark)
        user = _el("h4.message-name>a.username", who) + _el("h5.userTitle", "Member")
        body = "<br /><br />\n".join(_blocks(text))
        main = _el("header.message-attribution>time", _date(rng))
        main += _el("div.message-userContent>article.message-body js-selectToQuote>div.bbWrapper", body)
        main += _el("footer.message-footer", '<a href="#like">Like</a> <a href="#reply">Reply</a>')
        cells = _el("div.message-cell message-cell--user>section.message-user", user)
        cells += _el("div.message-cell message-cell--main", main) + vote
        return _el(f"article.message {kind} js-post>div.message-inner", cells)

    out = []
    for gold in exercises:
        posts = [post(gold.problem, None, False)]
        posts += [post(*answer) for answer in _replies(exercises, gold, rng)]
        if len(posts) == 1:
            posts.append(_el("div.blockMessage", "No one has replied to this thread yet."))
        out.append(_el("div.p-title>h1", _el("span.label", "Question"), f" Problem {gold.number}"))
        out.append(_el("div.block block--messages>div.block-body", "\n".join(posts)))
        out.append(_el("div.blockMessage>a", "You must log in to reply here.", href="/login/"))
    return "\n".join(out)


def forum_q2a(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question2Answer threads with net votes and a best answer."""

    def item(text: str, votes: int, best: bool, part: str, verb: str) -> str:
        count = _el("span.qa-netvote-count-data", f"{votes:+d}") + _el("span.qa-netvote-count-pad", " votes")
        parts = [_el("div.qa-voting qa-voting-net>span.qa-netvote-count", count)]
        if best:
            parts.append(_el("div.qa-a-selection>div.qa-a-selected-text", "Best answer"))
        parts.append(_el(f"div.qa-{part}-content qa-post-content>div.entry-content", _paras(text)))
        user = _el("a.qa-user-link", rng.choice(_PEOPLE), href="../user")
        parts.append(_el(f"span.qa-{part}-meta", f"{verb} {_date(rng)} by {user} (120 points)"))
        return _el(f"div.qa-{part}{' qa-a-list-item-selected' if best else ''}", "\n".join(parts))

    out = []
    for gold in exercises:
        answers = [item(*answer, "a-list-item", "answered") for answer in _replies(exercises, gold, rng)]
        out.append(_el("h1.qa-main-heading>a", f"Question {gold.number}", href=f"../{rng.randint(100, 999)}"))
        out.append(_el("div.qa-part-q-view", item(gold.problem, rng.randint(0, 6), False, "q-view", "asked")))
        head = _el("h2", f"{len(answers)} Answers" if answers else "Please log in to answer this question.")
        out.append(_el("div.qa-part-a-list", head, _el("div.qa-a-list", "\n".join(answers))))
    return _el("div.qa-main", "\n".join(out))


def end_openstax_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A textbook's exercise section with a numbered answer key behind it."""
    base, dot = rng.randint(10**6, 10**7), _el("span", ". ", cls="os-divider")
    out = ["<h2>Review Exercises</h2>", f"<p>{rng.choice(_TOPICS)}: answer the following.</p>"]
    key = ["<h2>Answer Key</h2>"]
    for name, gold in ((f"fs-id{base + i}", gold) for i, gold in enumerate(exercises)):
        number = _el("span", str(gold.number), cls="os-number")
        if gold.solution is not None:
            number = _el("a", str(gold.number), cls="os-number", href=f"#{name}-solution")
            back = _el("a", str(gold.number), cls="os-number", href=f"#{name}")
            body = _el("div", _paras(gold.solution), cls="os-solution-container")
            key.append(_el("div", back, dot, body, data_type="solution", id=f"{name}-solution"))
        body = _el("div", _paras(gold.problem), cls="os-problem-container")
        out.append(_el("div.os-exercise>div", number, dot, body, data_type="problem", id=name))
    return _el("section.os-eoc", "\n".join(out)) + "\n" + _el("section.os-eob", "\n".join(key))


def end_worksheet_solutions(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A printable worksheet with its answers under a rule at the end."""
    title = rng.choice(("Answers", "Solutions", "Answers to the exercises"))
    out = [f"<h1>Worksheet {rng.randint(1, 30)}</h1>", '<p><a href="#answers">Jump to the answers</a></p>']
    out += [_el("div", _paras(g.problem, f"<b>{g.number}.</b> "), cls="q") for g in exercises]
    out += ["<hr />", _el("h2", title, id="answers")]
    out += [_paras(g.solution, f"<b>{g.number}.</b> ") for g in exercises if g.solution is not None]
    out += ["<hr />", f"<address>&copy; {rng.randint(2004, 2023)} {rng.choice(_PEOPLE)}</address>"]
    return _el("div", "\n".join(out), id="content")


def toggle_pretext(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A PreTeXt book section whose solutions are born as hidden knowls."""
    chapter, dot = rng.randint(1, 9), _el("span", ".", cls="period")
    out = [_el("h3", _el("span", f"{chapter}.4", cls="codenumber"), " Exercises", cls="heading")]
    for gold in exercises:
        name = f"ex-{chapter}-4-{gold.number}"
        parts = [_el("h4.heading>span.codenumber", str(gold.number), dot), _paras(gold.problem, cls="para")]
        if gold.solution is not None:
            summary = _el("summary", _el("span", "Solution", cls="type"), dot, cls="knowl__link")
            body = _el("div.solution solution-like knowl__content", _paras(gold.solution, cls="para"))
            parts.append(_el("div.solutions>details.solution solution-like born-hidden-knowl", summary, body))
        parts.append(_el("div", _el("a", "\u00b6", href=f"#{name}"), cls="autopermalink"))
        out.append(_el("article", "\n".join(parts), cls="exercise exercise-like", id=name))
    return _el("section", "\n".join(out), cls="exercises")


def toggle_spoiler_shortcode(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutoring blog whose answers hide in spoilers of a WordPress plugin."""
    label = rng.choice(("Show solution", "Click here for the solution", "Show answer"))
    out = [_el("p.byline", f"By {rng.choice(_PEOPLE)} &middot; {_date(rng)} &middot; 5 min read")]
    for gold in exercises:
        parts = [_el("div.practice-label", f"Question {gold.number}"), _paras(gold.problem)]
        if gold.solution is not None:
            title = _el("div", label, cls="su-spoiler-title", tabindex="0", role="button")
            body = _el("div", _paras(gold.solution), cls="su-spoiler-content su-u-clearfix su-u-trim")
            parts.append(_el("div", title, body, cls="su-spoiler su-spoiler-style-default su-spoiler-closed"))
        out.append(_el("div", "\n".join(parts), cls="practice-question"))
    offer = "<p>Want more practice? Sign up for our free weekly set.</p><button>Subscribe</button>"
    return _el("div", "\n".join([*out, _el("div", offer, cls="newsletter-box")]), cls="entry-content")


def inline_blogger(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A Blogger post with bold labels and line breaks only."""
    ask, reply = rng.choice((("Q{}.", "Ans:"), ("Question {}:", "Answer:"), ("Q.{})", "Sol.")))
    out = []
    for gold in exercises:
        lines = [f"<b>{ask.format(gold.number)}</b> " + "<br /><br />\n".join(_blocks(gold.problem))]
        if gold.solution is not None:
            lines.append(f"<b>{reply}</b> " + "<br /><br />\n".join(_blocks(gold.solution)))
        out.append("<br />\n".join(lines) + "<br />\n<br />")
    body = _el("div.post-body entry-content>div", "\n".join(out), dir="ltr", trbidi="on")
    return body + "\n" + _el("div.post-footer>span.post-author vcard", f"Posted by {rng.choice(_PEOPLE)}")


def inline_lecture_list(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A lecturer's problem sheet as a plain list with emphasised labels."""
    word, reply = rng.choice((("Problem", "Solution."), ("Exercise", "Solution:"), ("Ex.", "Answer.")))
    out = [f"<p>MATH {rng.randint(101, 499)}, sheet {rng.randint(1, 12)}. Due {_date(rng)}, noon.</p>"]
    out.append('<ul class="problems" style="list-style-type:none">')
    for gold in exercises:
        item = _paras(gold.problem, f"<strong>{word} {gold.number}.</strong> ")
        if gold.solution is not None:
            item += "\n" + _paras(gold.solution, f"<em>{reply}</em> ")
        out.append(_el("li", item))
    out.append('</ul>\n<p>[<a href="../">Course page</a>] [<a href="sheet.tex">TeX source</a>]</p>')
    return "\n".join(out)


LAYOUTS: dict[str, Style] = {
    "heading_docusaurus": heading_docusaurus,
    "heading_problem_of_week": heading_problem_of_week,
    "dl_bank_record": dl_bank_record,
    "dl_drupal_fields": dl_drupal_fields,
    "table_mark_scheme": table_mark_scheme,
    "table_word_export": table_word_export,
    "forum_xenforo": forum_xenforo,
    "forum_q2a": forum_q2a,
    "end_openstax_key": end_openstax_key,
    "end_worksheet_solutions": end_worksheet_solutions,
    "toggle_pretext": toggle_pretext,
    "toggle_spoiler_shortcode": toggle_spoiler_shortcode,
    "inline_blogger": inline_blogger,
    "inline_lecture_list": inline_lecture_list,
}
