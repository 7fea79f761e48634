"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 12."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_NAMES = ("marek_w", "Priya N.", "old_lecturer", "tomasz77", "Hannah", "qed_or_bust", "J. Okafor")
_TOPICS = ("Mechanics", "Algebra", "Sequences", "Probability", "Geometry", "Heat and energy", "Calculus")
_LEVELS = ("Easy", "Medium", "Hard", "Challenge")
_GUESSES = (
    "I think it is just 7, but I only did it in my head.",
    "Isn't this zero because everything cancels?",
    "I get 3/5 with my calculator, no idea how to prove it though.",
)


def _el(spec: str, *inner: str, **attrs: str) -> str:
    """Builds an element from "tag.class.class#id", its contents and further attributes."""
    path, _, ident = spec.partition("#")
    tag, *classes = path.split(".")
    pairs = {"id": ident, "class": " ".join(classes), **attrs}
    text = "".join(f' {k.rstrip("_").replace("_", "-")}="{html.escape(v)}"' for k, v in pairs.items() if v)
    return f"<{tag}{text}>" + "\n".join(inner) + f"</{tag}>"


def _line(text: str) -> str:
    """Escapes one run of text and turns its images into tags."""
    safe = html.escape(text, quote=False).replace('"', "&quot;")
    return _IMAGE.sub(r'<img src="\2" alt="\1">', safe)


def _pieces(text: str) -> list[str]:
    """Splits a text at blank lines, but never within a displayed formula, and renders each paragraph."""
    parts: list[str] = []
    whole = True
    for part in re.split(r"\n[ \t]*\n", text.strip()):
        now = part if whole else parts.pop() + "\n\n" + part
        parts.append(now)
        opened = len(re.findall(r"(?<!\\)\\\[", now)) > len(re.findall(r"(?<!\\)\\\]", now))
        whole = not (opened or now.count("$$") % 2 or now.count(r"\begin{") > now.count(r"\end{"))
    return [_line(part.strip()) for part in parts if part.strip()] or [""]


def _paras(text: str, lead: str = "") -> str:
    """Renders a text as paragraphs; `lead` goes into the first one."""
    first, *rest = _pieces(text)
    return "\n".join(f"<p>{piece}</p>" for piece in (lead + first, *rest))


def _breaks(text: str) -> str:
    """Renders a text as one run with line breaks between its paragraphs."""
    return "<br>\n<br>\n".join(_pieces(text))


def _date(rng: random.Random) -> str:
    """Gives a date as a site would print it."""
    return f"{rng.choice(('Jan', 'Mar', 'May', 'Oct'))} {rng.randint(1, 28)}, {rng.randint(2009, 2023)}"


def _answers(exercises: Sequence[Gold], gold: Gold, rng: random.Random) -> list[tuple[str, int, bool]]:
    """Gives a thread's answers in page order as (text, votes, accepted); the wrong ones are not accepted."""
    if gold.solution is None:
        return []
    others = [e.solution for e in exercises if e.solution is not None and e.solution != gold.solution]
    guesses = rng.sample(_GUESSES, 3)
    wrong = guesses[: rng.randint(0 if others else 1, 2)]
    wrong += rng.sample(others, min(len(others), rng.randint(0 if wrong else 1, 2)))
    accepted = rng.random() < 0.6
    out = [(text, rng.randint(-2, 9 if accepted else 4), False) for text in dict.fromkeys(wrong)]
    out.append((gold.solution, rng.randint(1, 12) if accepted else rng.randint(6, 21), accepted))
    rng.shuffle(out)
    return out


def heading_contest_wiki(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A contest wiki page (MediaWiki): a section a problem, a subsection for its solution, edit links."""
    year = rng.randint(1996, 2021)
    toc, body = [], []

    def section(tag: str, title: str, ident: str) -> str:
        edit = _el("span.mw-editsection", f'[<a href="?action=edit&amp;section={len(body) + 1}">edit</a>]')
        return _el(tag, _el(f"span.mw-headline#{ident}", title) + edit)

    for place, e in enumerate(exercises, 1):
        label = f'<span class="tocnumber">{place}</span> <span class="toctext">Problem {e.number}</span>'
        toc.append(_el("li.toclevel-1", _el("a", label, href=f"#Problem_{e.number}")))
        body.append(section("h2", f"Problem {e.number}", f"Problem_{e.number}") + "\n" + _paras(e.problem))
        if e.solution is not None:
            body.append(section("h3", "Solution", f"Solution_{e.number}") + "\n" + _paras(e.solution))
    return "\n".join(
        (
            _el("h1.firstHeading#firstHeading", f"{year} Regional Contest/Problems"),
            '<div id="jump-to-nav">Jump to: <a href="#mw-head">navigation</a></div>',
            '<div id="mw-content-text" lang="en" dir="ltr" class="mw-content-ltr"><div class="mw-parser-output">',
            f"<p>This page lists the problems of the <b>{year}</b> round with solutions by our users.</p>",
            _el("div.toc#toc", '<div class="toctitle"><h2>Contents</h2></div>', _el("ul", *toc)),
            *body,
            section("h2", "See also", "See_also"),
            f'<ul><li><a href="/wiki/Last">{year - 1} Regional Contest</a></li></ul></div></div>',
        )
    )


def heading_week_archive(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A problem-of-the-week archive on WordPress: an article a week with meta lines and share buttons."""
    word = rng.choice(("Solution", "Our solution", "Solution to this week's problem"))
    share = '<h3 class="sd-title">Share this:</h3><ul><li><a href="?share=twitter">Twitter</a></li></ul>'
    out = ['<header class="page-header"><h1 class="page-title">Category: Problem of the Week</h1></header>']
    for e in exercises:
        title = _el("a", f"Problem of the Week {e.number}", href=f"/potw/{e.number}/", rel="bookmark")
        posted = f'Posted on <time>{_date(rng)}</time> by <a class="url fn n">{rng.choice(_NAMES)}</a>'
        content = [_el("h3", "Problem"), _paras(e.problem)]
        if e.solution is not None:
            content += [_el("h3", word), _paras(e.solution)]
        out.append(
            _el(
                f"article.post.type-post.status-publish.hentry#post-{1000 + 7 * e.number}",
                _el("header.entry-header", _el("h2.entry-title", title), _el("div.entry-meta", posted)),
                _el("div.entry-content", *content, _el("div.sharedaddy.sd-sharing-enabled", share)),
                _el("footer.entry-footer", f'<a href="#respond">{rng.randint(2, 19)} Comments</a>'),
            )
        )
    out.append('<nav class="posts-navigation"><h2 class="sr-only">Posts navigation</h2>Older</nav>')
    return _el("main.site-main#main", *out)


def dl_bank_record(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A question bank's records: one Bootstrap description list an item."""
    out = [
        '<nav><ol class="breadcrumb"><li class="breadcrumb-item"><a href="/">Bank</a></li></ol></nav>',
        f'<p class="text-muted">{len(exercises)} items found</p>',
    ]
    for e in exercises:
        level = _el("span.badge.bg-secondary", rng.choice(_LEVELS))
        fields = [
            ("Item no.", str(e.number)),
            ("Topic", rng.choice(_TOPICS)),
            ("Difficulty", level),
            ("Question", _paras(e.problem)),
        ]
        if e.solution is not None:
            fields.append(("Worked solution", _paras(e.solution)))
        fields += [("Marks", str(rng.randint(2, 8))), ("By", rng.choice(_NAMES)), ("Revised", _date(rng))]
        rows = [_el("dt.col-sm-3", key) + "\n" + _el("dd.col-sm-9", value) for key, value in fields]
        foot = _el("div.card-footer", _el("a.btn.btn-sm", "Add to test"), _el("a.btn", "Report an error"))
        out.append(_el(f"div.card#item-{e.number}", _el("div.card-body", _el("dl.row.mb-0", *rows)), foot))
    return _el("div.container", *out)


def dl_drupal_fields(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A school portal on Drupal: a node an exercise, its named fields with labels."""
    asked, answered = rng.choice((("Problem", "Solution"), ("Task", "Answer"), ("Exercise text", "Solution")))

    def field(name: str, label: str, value: str, place: str = "inline") -> str:
        inner = _el("div.field__label", label), _el("div.field__item", value)
        return _el(f"div.field.field--name-field-{name}.field--label-{place}", *inner)

    out = []
    for e in exercises:
        fields = [field("number", "Number", str(e.number)), field("grade", "Grade", str(rng.randint(7, 12)))]
        fields.append(field("problem", asked, _el("div.text-formatted", _paras(e.problem)), "above"))
        if e.solution is not None:
            fields.append(field("solution", answered, _el("div.text-formatted", _paras(e.solution)), "above"))
        fields.append(field("keywords", "Keywords", f'<a href="/taxonomy/term/9">{rng.choice(_TOPICS)}</a>'))
        fields.append('<ul class="links"><li><a href="/user/login">Log in</a> to post comments</li></ul>')
        node = _el("div.node__content.clearfix", *fields)
        out.append(_el("article.node.node--type-exercise", node, about=f"/node/{4200 + e.number}"))
    return _el("div.views-element-container", _el("div.view-content", *out))


def table_worksheet_rows(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutorial sheet as one table: a row an exercise, its answer in the last column."""
    head, rows = rng.choice(("Model answer", "Solution", "Answer")), []
    for e in exercises:
        answer = "&nbsp;" if e.solution is None else _breaks(e.solution)
        cells = _el("td", str(e.number)), _el("td", _breaks(e.problem)), _el("td", str(rng.randint(1, 10)))
        rows.append(_el("tr", *cells, _el("td", answer), valign="top"))
    top = f'<tr bgcolor="#dddddd"><th>No.</th><th>Question</th><th>Marks</th><th>{head}</th></tr>'
    return "\n".join(
        (
            _el("h2", f"Tutorial sheet {rng.randint(1, 12)}: {rng.choice(_TOPICS)}"),
            "<p><i>Hand in at the office by Friday noon. Late work is not marked.</i></p>",
            _el("table", _el("thead", top), _el("tbody", *rows), border="1", cellpadding="6", width="100%"),
            f'<p><small>Last updated {_date(rng)}. <a href="index.html">Back to the course page</a></small></p>',
        )
    )


def table_card_each(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A collection of exercises: a table an exercise with row headers, captioned by its number."""
    out = [
        "<h1>Collection of solved tasks</h1>",
        '<p class="filter">Sort by: <a href="?s=n">number</a> | <a href="?s=d">difficulty</a></p>',
    ]
    for e in exercises:
        fields = [("Level", "&#9733;" * rng.randint(1, 4)), ("Task", _paras(e.problem))]
        if e.solution is not None:
            fields.append(("Solution", _paras(e.solution)))
        rows = [_el("tr", _el("th", key, scope="row"), _el("td", value)) for key, value in fields]
        foot = f'<a href="print.php">Print</a> &middot; {rng.randint(90, 4000)} views'
        rows.append(_el("tr.foot", _el("td", foot, colspan="2")))
        out.append(_el(f"table.task-table#t{e.number}", _el("caption", f"Task {e.number}"), *rows))
    return _el("div#content", *out)


def forum_q2a(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question2Answer threads: vote counters, the selected answer marked as the best one."""

    def votes(count: int) -> str:
        return _el("div.qa-voting", _el("span.qa-netvote-count-data", f"{count:+d}") + _el("span", " votes"))

    def meta(what: str) -> str:
        who = _el("a.qa-user-link", rng.choice(_NAMES)) + f" ({rng.randint(100, 9000)} points)"
        return _el("span.qa-meta", f"{what} <time>{_date(rng)}</time> by", who)

    out = []
    for e in exercises:
        answers = _answers(exercises, e, rng)
        title = _el("h1", _el("a", _el("span.entry-title", f"Exercise {e.number}"), href=f"/{e.number}"))
        text = _el("div.qa-q-view-content.qa-post-content", _el("div.entry-content", _paras(e.problem)))
        main = _el("div.qa-q-view-main", text, meta("asked"))
        out += [title, _el(f"div.qa-q-view#q{e.number}", votes(rng.randint(0, 5)), main)]
        items = []
        for place, (answer, count, best) in enumerate(answers):
            text = _el("div.qa-a-item-content.qa-post-content", _el("div.entry-content", _paras(answer)))
            mark = _el("div.qa-a-selection", _el("div.qa-a-selected-text", "Best answer")) if best else ""
            name = "div.qa-a-list-item" + (".qa-a-list-item-selected" if best else "")
            main = _el("div.qa-a-item-main", mark, text, meta("answered"))
            items.append(_el(f"{name}#a{e.number}_{place}", votes(count), main))
        many = {0: "No answers yet", 1: "1 Answer"}.get(len(answers), f"{len(answers)} Answers")
        out.append(_el("div.qa-part-a-list", _el("h2#a_list_title", many), _el("div.qa-a-list", *items)))
    return _el("div.qa-main", *out)


def forum_xenforo(exercises: Sequence[Gold], rng: random.Random) -> str:
    """XenForo question threads: posts with names and vote scores, the solution's post flagged as such."""

    def post(place: int, text: str, score: int | None, best: bool) -> str:
        who, rank = rng.choice(_NAMES), rng.choice(("Member", "New member", "Homework Helper"))
        user = _el("h4.message-name", _el("a.username", who)), _el("h5.userTitle", rank)
        body = [_el("header.message-attribution", f"<time>{_date(rng)}</time> <a>#{place}</a>")]
        if best:
            body.append(_el("div.message-solution", _el("span.label.label--green", "Solution")))
        body.append(_el("article.message-body", _el("div.bbWrapper", _breaks(text))))
        if score is not None:
            up, count = _el("a.contentVote-vote--up", "Upvote"), _el("span.contentVote-score", str(score))
            body.append(_el("div.contentVote.message-vote", up, count, _el("a.contentVote-vote", "Downvote")))
        body.append('<footer class="message-footer"><a class="actionBar-action">Reply</a></footer>')
        name = "article.message" + (".message--solution" if best else "")
        return _el(name, _el("div.message-cell--user", *user), _el("div.message-cell--main", *body))

    out = []
    for e in exercises:
        answers = _answers(exercises, e, rng)
        out.append(_el("div.p-title", _el("h1.p-title-value", f"Problem {e.number}")))
        posts = [post(1, e.problem, None, False)]
        if answers:
            posts.append(_el("h3.block-header", f"Answers ({len(answers)})"))
        posts += [post(place, *answer) for place, answer in enumerate(answers, 2)]
        out.append(_el("div.block.block--messages", *posts, data_type="question"))
    return "\n".join(out)


def end_openstax_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A textbook companion in OpenStax markup: exercises, then an answer key with linked numbers."""
    chapter, dot = rng.randint(1, 14), '<span class="os-divider">. </span>'
    out, key = [_el("h2", f"{chapter}.{rng.randint(1, 6)} Exercises", data_type="title")], []
    for e in exercises:
        ident = f"fs-id{rng.randint(1000000, 9999999)}"
        mark = _el("span.os-number", str(e.number))
        if e.solution is not None:
            mark = _el("a.os-number", str(e.number), href=f"#{ident}-solution")
            back = _el("a.os-number", str(e.number), href=f"#{ident}") + dot
            text = _el("div.os-solution-container", _paras(e.solution))
            key.append(_el(f"div#{ident}-solution", back, text, data_type="solution"))
        text = mark + dot, _el("div.os-problem-container", _paras(e.problem))
        out.append(_el(f"div#{ident}", _el("div", *text, data_type="problem"), data_type="exercise"))
    title = '<h1 data-type="document-title"><span class="os-text">Answer Key</span></h1>'
    part = _el("h2", f"Chapter {chapter}", data_type="title")
    return _el("section.os-section-exercises", *out) + "\n" + _el("div.os-eob", title, part, *key)


def end_worksheet_list(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A printable worksheet: a numbered list of exercises and a second list with the answers."""
    asked = [_el("li", _paras(e.problem), value=str(e.number)) for e in exercises]
    key = [_el("li", _paras(e.solution), value=str(e.number)) for e in exercises if e.solution is not None]
    return "\n".join(
        (
            '<p class="ws-name">Name: ______________ &nbsp; Class: ______ &nbsp; Date: ________</p>',
            _el("h2", f"Worksheet {rng.randint(2, 30)} &ndash; {rng.choice(_TOPICS)}"),
            "<p>Do all your working in your exercise book. Calculators are allowed.</p>",
            _el("ol.questions", *asked),
            _el("h2#answers", rng.choice(("Answers", "Answers to the exercises", "Solutions"))),
            _el("ol.answers", *key),
            f'<p class="copyright">&copy; {rng.randint(2008, 2022)} Maths department. <a>Print</a></p>',
        )
    )


def toggle_mkdocs_details(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Course notes in MkDocs Material: a question admonition and a folded block with the solution."""
    out = ['<h1 id="exercises">Exercises<a class="headerlink" href="#exercises">&para;</a></h1>']
    for e in exercises:
        title = _el("p.admonition-title", f"Exercise {e.number}")
        out.append(_el("div.admonition.question", title, _paras(e.problem)))
        if rng.random() < 0.3:
            out.append(_el("details.tip", _el("summary", "Hint"), "<p>Look at the last lecture again.</p>"))
        if e.solution is not None:
            out.append(_el("details.success", _el("summary", "Solution"), _paras(e.solution)))
    out.append(_el("div.md-source-file", f"<small>Last update: <span>{_date(rng)}</span></small>"))
    return _el("article.md-content__inner.md-typeset", *out)


def toggle_collapse_button(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A practice portal on Bootstrap: cards with a button that unfolds the solution's panel."""
    label, out = rng.choice(("Show solution", "View solution", "Show answer")), []
    for e in exercises:
        level = _el("span.badge.badge-pill.badge-info", rng.choice(_LEVELS))
        body = [_el("div.question-text", _paras(e.problem))]
        if e.solution is not None:
            body.append(_el("button.btn", label, data_toggle="collapse", data_target=f"#sol{e.number}"))
            body.append(_el(f"div.collapse#sol{e.number}", _el("div.card.card-body", _paras(e.solution))))
        head = _el("div.card-header", f"Question {e.number}", level)
        foot = f'<a class="bookmark">Bookmark</a> &bull; Solved by {rng.randint(20, 98)}% of students'
        out.append(_el("div.card", head, _el("div.card-body", *body), _el("div.card-footer.small", foot)))
    out.append('<ul class="pagination"><li><a class="page-link" href="?p=2">Next &raquo;</a></li></ul>')
    return _el("div.row", _el("div.col-lg-8", *out))


def inline_blog_bold(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutoring blog: bold "Q3." and "Ans:" at the start of plain paragraphs, advertisements between."""
    ask, reply = rng.choice((("Q{}.", "Ans:"), ("Question {}:", "Answer:"), ("Q.{}", "Sol.")))
    out = [f"<p>Dear students, here are important questions on <em>{rng.choice(_TOPICS)}</em>.</p>"]
    for e in exercises:
        out.append(_paras(e.problem, _el("strong", ask.format(e.number)) + " "))
        if e.solution is not None:
            out.append(_paras(e.solution, _el("strong", reply) + " "))
        if rng.random() < 0.25:
            out.append('<div class="ad-slot"><span>Advertisement</span><ins class="adsbygoogle"></ins></div>')
    out.append('<div class="post-share"><a href="#">Share on WhatsApp</a> <a href="#">Pin it</a></div>')
    return _el("div.post-body.entry-content", *out)


def inline_notes_items(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lecture notes: a list item an example, problem and solution run on within it behind small labels."""
    word, items = rng.choice(("Example", "Exercise", "Problem")), []
    for e in exercises:
        parts = [_el("b", f"{word} {e.number}.") + " " + _breaks(e.problem)]
        if e.solution is not None:
            parts += ["<br>", "<i>Solution.</i> " + _breaks(e.solution), '<span class="qed">&#9633;</span>']
        items.append(_el(f"li#ex-{e.number}", *parts))
    nav = f'<a href="lec{rng.randint(1, 5)}.html">[prev]</a> <a href="lec{rng.randint(6, 9)}.html">[next]</a>'
    end = _el("address", f"Notes taken by {rng.choice(_NAMES)}, {_date(rng)}")
    return _el("div.lecture", _el("p.nav", nav), _el("ul", *items, style="list-style-type: none"), end)


_ALL = (
    heading_contest_wiki,
    heading_week_archive,
    dl_bank_record,
    dl_drupal_fields,
    table_worksheet_rows,
    table_card_each,
    forum_q2a,
    forum_xenforo,
    end_openstax_key,
    end_worksheet_list,
    toggle_mkdocs_details,
    toggle_collapse_button,
    inline_blog_bold,
    inline_notes_items,
)
LAYOUTS: dict[str, Style] = {style.__name__: style for style in _ALL}
