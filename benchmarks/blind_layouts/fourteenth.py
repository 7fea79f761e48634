"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 14."""

import random
import re
from collections.abc import Sequence
from html import escape

from benchmarks.extraction_styles import Gold, Style

_IMAGE = re.compile(r"!\[([^\]]*)\]\(((?:[^()\s]|\([^()\s]*\))+)\)")
_BLOCK = re.compile(r"(?s)(?:\$\$.*?\$\$|\\\[.*?\\\]|(?!\n[ \t]*\n).)+")
_USERS = ("mathlete99", "Priya S.", "tomek_w", "quantum_quokka", "JRoberts", "lena.k", "Dr_Ode", "abelian")
_TOPICS = ("Kinematics", "Linear equations", "Stoichiometry", "Integration", "Probability", "Number theory")
_LEVELS = ("Easy", "Medium", "Hard", "Challenge")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_GUESSES = (
    "I'm not sure but I think it comes out to 7, at least that is what my calculator says.",
    "Isn't this just the formula from the lecture with the numbers put in? I got 0.25.",
    "I would say that it is impossible, because there is not enough information given.",
    "My attempt gives -1, but somebody please check the sign.",
)


def _inline(text: str) -> str:
    """Escape text for HTML and turn its images into img elements."""
    parts = _IMAGE.split(text)
    out = escape(parts[0], quote=False)
    for alt, src, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        out += f'<img src="{escape(src)}" alt="{escape(alt)}">{escape(rest, quote=False)}'
    return out


def _el(tag: str, classes: str, *body: str) -> str:
    """Wrap markup in an element with the given classes."""
    return f'<{tag} class="{classes}">' + "\n".join(body) + f"</{tag}>"


def _split(text: str) -> list[str]:
    """Split text at blank lines, never inside a displayed formula."""
    return [block.strip("\n") for block in _BLOCK.findall(text) if block.strip()]


def _paras(text: str, lead: str = "") -> str:
    """Render text as paragraphs, the first one opened by the lead markup."""
    out = [_inline(block) for block in _split(text)] or [""]
    out[0] = lead + out[0]
    return "\n".join(f"<p>{block}</p>" for block in out)


def _cell(text: str) -> str:
    """Render text bare if it is one paragraph, else as paragraphs."""
    return _paras(text) if len(_split(text)) > 1 else _inline(text.strip())


def _date(rng: random.Random) -> str:
    """Make up a date."""
    return f"{rng.choice(_MONTHS)} {rng.randint(1, 28)}, {rng.randint(2011, 2024)}"


def _answers(gold: Gold, all_golds: Sequence[Gold], rng: random.Random) -> list[tuple[str, int, bool]]:
    """Make a thread's answers: text, votes, accepted."""
    if gold.solution is None:
        return []
    pool = [g.solution for g in all_golds if g.solution and g.solution.strip() != gold.solution.strip()]
    wrong: list[str] = []
    for guess in rng.sample(_GUESSES, rng.randint(1, 2)):
        wrong.append(rng.choice(pool) if pool and rng.random() < 0.5 else guess)
    accepted = rng.random() < 0.6
    votes = rng.randint(0, 5) if accepted else rng.randint(5, 19)
    rows = [(gold.solution, votes, accepted)]
    for text in dict.fromkeys(wrong):
        rows.append((text, rng.randint(0, 7) if accepted else rng.randint(-1, 3), False))
    rng.shuffle(rows)
    return rows


def heading_wiki_contest(exercises: Sequence[Gold], rng: random.Random) -> str:
    """MediaWiki page of a contest: h2 Problem N, h3 Solution, edit links, a contents box."""

    def head(level: int, title: str, anchor: str) -> str:
        url = f"/wiki/index.php?action=edit&amp;section={rng.randint(1, 40)}"
        edit = _el("span", "mw-editsection", f'[<a href="{url}" title="Edit section: {title}">edit</a>]')
        return f'<h{level}><span class="mw-headline" id="{anchor}">{title}</span>{edit}</h{level}>'

    toc = [f'<li><a href="#Problem_{g.number}">Problem {g.number}</a></li>' for g in exercises]
    out = [_el("div", "toc", '<div class="toctitle"><h2>Contents</h2></div>', "<ul>", *toc, "</ul>")]
    for i, gold in enumerate(exercises, 1):
        out += [head(2, f"Problem {gold.number}", f"Problem_{gold.number}"), _paras(gold.problem)]
        if gold.solution is not None:
            out += [head(3, "Solution", "Solution" if i == 1 else f"Solution_{i}"), _paras(gold.solution)]
    out.append(head(2, "See also", "See_also"))
    out.append('<ul><li><a href="/wiki/index.php/Problem_Solving">Problem solving</a></li></ul>')
    return _el("div", "mw-body-content", _el("div", "mw-parser-output", *out))


def heading_jekyll_notes(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Course notes made with Jekyll: h3 Exercise N, h4 Solution to Exercise N, sometimes an h4 Hint."""

    def head(level: int, title: str) -> str:
        slug = title.lower().replace(" ", "-")
        link = f'<a href="#{slug}" class="anchor-heading" aria-labelledby="{slug}"><svg></svg></a>'
        return f'<h{level} id="{slug}">{link} {title}</h{level}>'

    word = rng.choice(("Exercise", "Problem"))
    out = [head(1, f"Sheet {rng.randint(1, 9)} {rng.choice(_TOPICS)}")]
    out.append(f'<p class="fs-6 fw-300">Due {_date(rng)} at the start of the tutorial.</p>\n<hr />')
    for gold in exercises:
        out += [head(3, f"{word} {gold.number}"), _paras(gold.problem)]
        if rng.random() < 0.25:
            hint = f"<p>Reread section {rng.randint(1, 6)}.{rng.randint(1, 9)} of the notes.</p>"
            out += [f'<h4 class="no_toc" id="hint-{gold.number}">Hint</h4>', hint]
        if gold.solution is not None:
            out += [head(4, f"Solution to {word} {gold.number}"), _paras(gold.solution)]
    foot = f'<p><a href="#top">Back to top</a></p>\n<p>Page last modified: {_date(rng)}.</p>'
    return _el("div", "main-content", *out, f"<hr>\n<footer>{foot}</footer>")


def dl_bootstrap_record(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question bank with a Bootstrap dl of each record's details."""
    label = rng.choice(("Solution", "Worked solution", "Model answer"))
    out = ['<ol class="breadcrumb"><li><a href="/">Home</a></li><li class="active">Question bank</li></ol>']
    for gold in exercises:
        fields = [("Question no.", str(gold.number)), ("Topic", rng.choice(_TOPICS))]
        fields += [("Difficulty", rng.choice(_LEVELS)), ("Question", _cell(gold.problem))]
        if gold.solution is not None:
            fields.append((label, _cell(gold.solution)))
        fields.append(("Added by", f"{rng.choice(_USERS)}, {_date(rng)}"))
        rows = [_el("dt", "col-sm-3", name) + "\n" + _el("dd", "col-sm-9", value) for name, value in fields]
        foot = _el("div", "card-footer", '<a href="#" class="btn btn-sm btn-link">Add to worksheet</a>')
        out.append(_el("div", "card mb-3", _el("div", "card-body", _el("dl", "row mb-0", *rows)), foot))
    return _el("div", "container py-4", *out)


def dl_drupal_fields(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Drupal nodes whose named fields hold the question, its answer and other details."""

    def field(name: str, label: str, value: str) -> str:
        parts = _el("div", "field__label", label), _el("div", "field__item", value)
        return _el("div", f"field field--name-field-{name} field--type-text-long field--label-above", *parts)

    out = []
    for gold in exercises:
        fields = [field("number", "Number", str(gold.number))]
        fields.append(field("question", "Question", _paras(gold.problem)))
        if gold.solution is not None:
            fields.append(field("answer", "Answer", _paras(gold.solution)))
        fields.append(field("grade", "Grade level", f"Grade {rng.randint(6, 12)}"))
        fields.append(field("tags", "Tags", f'<a href="/taxonomy/term/4">{rng.choice(_TOPICS)}</a>'))
        fields.append('<ul class="links inline"><li><a href="/user">Log in</a> to post comments</li></ul>')
        out.append(_el("div", "views-row", _el("article", "node node--type-exercise", *fields)))
    out.append(_el("nav", "pager", '<ul><li class="pager__item"><a href="?page=1">Next page</a></li></ul>'))
    return _el("div", "view view-exercises", *out)


def table_markscheme_rows(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A worksheet's table: a row an exercise with columns for number, question, answer and marks."""
    names = ("No.", "Question", rng.choice(("Answer", "Solution", "Suggested answer")), "Marks")
    out = ["<table><thead><tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr></thead><tbody>"]
    for gold in exercises:
        solution = "&nbsp;" if gold.solution is None else _cell(gold.solution)
        cells = (str(gold.number), _cell(gold.problem), solution, str(rng.randint(1, 6)))
        out.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    out.append(f"</tbody></table>\n<figcaption>Updated {_date(rng)}</figcaption>")
    title = f"<h2>Revision sheet: {rng.choice(_TOPICS)}</h2>"
    button = '<p><a class="btn-print" href="javascript:window.print()">Print this page</a></p>'
    return _el("div", "entry-content", title, button, _el("figure", "wp-block-table is-style-stripes", *out))


def table_confluence_each(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Confluence page with a two-column table for each exercise, row headers at the left."""

    def row(name: str, value: str) -> str:
        label = _el("th", "confluenceTh", f"<p><strong>{name}</strong></p>")
        return f"<tr>{label}{_el('td', 'confluenceTd', value)}</tr>"

    out = [f'<p>Owner: <a class="confluence-userlink" href="#">{rng.choice(_USERS)}</a></p>']
    for gold in exercises:
        rows = [f'<tr><th colspan="2" class="confluenceTh"><p>Exercise {gold.number}</p></th></tr>']
        rows.append(row("Level", _el("span", "status-macro aui-lozenge", rng.choice(_LEVELS).upper())))
        rows.append(row("Problem", _paras(gold.problem)))
        if gold.solution is not None:
            rows.append(row("Solution", _paras(gold.solution)))
        rows.append(row("Time", f"<p>{rng.randint(1, 6) * 5} min</p>"))
        table = _el("table", "wrapped confluenceTable", "<tbody>", *rows, "</tbody>")
        out += [_el("div", "table-wrap", table), "<p><br/></p>"]
    return _el("div", "wiki-content", *out)


def forum_question2answer(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question2Answer threads with net votes, a selected answer and a comment now and then."""

    def votes(count: int) -> str:
        data = _el("span", "qa-netvote-count-data", f"{count:+d}" if count else "0")
        return _el("div", "qa-voting qa-voting-net", data + _el("span", "qa-netvote-count-pad", " votes"))

    def meta(kind: str, what: str) -> str:
        who = f'<a class="qa-user-link" href="#">{rng.choice(_USERS)}</a> ({rng.randint(100, 9000)} points)'
        return _el("span", f"qa-{kind}-meta", f"{what} {_date(rng)} by", who)

    def answer(text: str, score: int, accepted: bool) -> str:
        best = _el("div", "qa-a-selection", _el("div", "qa-a-selected-text", "Best answer"))
        parts = [best] if accepted else []
        parts += [_el("div", "qa-a-item-content", _paras(text)), meta("a-item", "answered")]
        if rng.random() < 0.3:
            thanks = _el("div", "qa-c-item-content", "<p>Thanks for looking into it!</p>")
            parts.append(_el("div", "qa-c-list-item", thanks, meta("c-item", "commented")))
        chosen = " qa-a-list-item-selected" if accepted else ""
        return _el("div", "qa-a-list-item" + chosen, votes(score), _el("div", "qa-a-item-main", *parts))

    out = []
    for gold in exercises:
        rows = _answers(gold, exercises, rng)
        out.append(_el("div", "qa-main-heading", f"<h1>How is exercise {gold.number} done?</h1>"))
        tag = _el("ul", "qa-q-view-tag-list", f'<li><a href="#">{rng.choice(_TOPICS).lower()}</a></li>')
        body = _el("div", "qa-q-view-content", _paras(gold.problem))
        main = _el("div", "qa-q-view-main", body, tag, meta("q-view", "asked"))
        out.append(_el("div", "qa-q-view", votes(rng.randint(0, 6)), main))
        login = '<h2>Please <a href="/login">log in</a> or register to answer this question.</h2>'
        count = f"<h2>{len(rows)} Answers</h2>" if rows else login
        out.append(_el("div", "qa-part-a-list", count, *(answer(*row) for row in rows)))
    return _el("div", "qa-main", *out)


def forum_xenforo_question(exercises: Sequence[Gold], rng: random.Random) -> str:
    """XenForo question threads: posts with scores, one perhaps marked as the solution."""

    def post(text: str, score: int | None, solved: bool) -> str:
        name = f'<h4 class="message-name"><a class="username" href="#">{rng.choice(_USERS)}</a></h4>'
        rank = _el("h5", "userTitle message-userTitle", rng.choice(("New member", "Well-known member")))
        cells = [_el("div", "message-cell message-cell--user", name, rank)]
        date = _el("header", "message-attribution", f'<time class="u-dt">{_date(rng)}</time>')
        body = _el("div", "message-body js-selectToQuote", _el("div", "bbWrapper", _paras(text)))
        foot = _el("footer", "message-footer", '<a href="#" class="actionBar-action--reply">Reply</a>')
        cells.append(_el("div", "message-cell message-cell--main", date, body, foot))
        if score is not None:
            count = f'<span class="contentVote-score js-voteCount" data-score="{score}">{score}</span>'
            up, down = (f'<a class="contentVote-vote" href="#">{word}</a>' for word in ("Upvote", "Downvote"))
            mark = _el("span", "solutionIcon is-solution", "Solution") if solved else ""
            vote = _el("div", "contentVote js-contentVote", up, count, down)
            cells.append(_el("div", "message-cell message-cell--vote", vote + mark))
        classes = "message message--post js-post" + (" message--solution" if solved else "")
        return _el("article", classes, _el("div", "message-inner", *cells))

    out = []
    for gold in exercises:
        rows = _answers(gold, exercises, rng)
        title = _el("span", "label label--primary", "Question") + f" Homework problem {gold.number}"
        parts = [_el("h1", "p-title-value", title)]
        parts.append(_el("div", "block block--messages", post(gold.problem, None, False)))
        if rows:
            header = _el("div", "block-header", f'{len(rows)} answers <a href="?order=date">Sort by date</a>')
            parts.append(_el("div", "block block--messages", header, *(post(*row) for row in rows)))
        parts.append('<div class="blockMessage">You must log in or register to reply here.</div>')
        out.append(_el("div", "p-body-content", *parts))
    return "\n".join(out)


def end_openstax_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """OpenStax-like chapter exercises with numbered links into the answer key that ends the page."""

    def item(kind: str, ident: str, number: str, text: str) -> str:
        body = _el("div", f"os-{kind}-container", _paras(text))
        return f'<div data-type="{kind}" id="{ident}">{number}<span class="os-divider">. </span>{body}</div>'

    chapter = rng.randint(2, 14)
    out, key = [f'<h2 data-type="title">Chapter {chapter} Exercises</h2>'], []
    for gold in exercises:
        ident, number = f"fs-{gold.number}", _el("span", "os-number", str(gold.number))
        if gold.solution is not None:
            number = f'<a class="os-number" href="#{ident}-solution">{gold.number}</a>'
            back = f'<a class="os-number" href="#{ident}">{gold.number}</a>'
            key.append(item("solution", f"{ident}-solution", back, gold.solution))
        out.append(f'<div data-type="exercise">{item("problem", ident, number, gold.problem)}</div>')
    page = [_el("section", "section-exercises", *out)]
    if key:
        page.append(_el("div", "os-eob", "<h2>Answer Key</h2>", f"<h3>Chapter {chapter}</h3>", *key))
    page.append(_el("div", "citation", "<p>Want to cite, share, or modify this book?</p>"))
    return "\n".join(page)


def end_worksheet_lists(exercises: Sequence[Gold], rng: random.Random) -> str:
    """School worksheet: an ordered list of questions, then one of answers with the same values."""
    title = rng.choice(("Answers", "Answer key", "Solutions"))
    key = [f'<li value="{g.number}">{_cell(g.solution)}</li>' for g in exercises if g.solution is not None]
    items = [f'<li value="{gold.number}">{_cell(gold.problem)}</li>' for gold in exercises]
    name = '<p class="name-line">Name: ____________ &nbsp; Date: ________</p>'
    out = [f"<h1>{rng.choice(_TOPICS)} practice worksheet</h1>", name, _el("ol", "questions", *items)]
    if key:
        out += ["<hr>", f'<h2 id="answers">{title}</h2>', _el("ol", "answers", *key)]
    out.append(_el("div", "sharedaddy", "<h3>Share this:</h3>", '<ul><li><a href="#">Twitter</a></li></ul>'))
    return _el("div", "post-body", *out)


def toggle_mkdocs_details(exercises: Sequence[Gold], rng: random.Random) -> str:
    """MkDocs Material admonitions with the solution in a closed details element."""
    label = rng.choice(("Solution", "Show solution", "Click to reveal the answer"))
    out = ['<h1 id="exercises">Exercises<a class="headerlink" href="#exercises">&para;</a></h1>']
    for gold in exercises:
        parts = [_el("p", "admonition-title", f"Exercise {gold.number}"), _paras(gold.problem)]
        if gold.solution is not None:
            parts.append(_el("details", "success", f"<summary>{label}</summary>", _paras(gold.solution)))
        out.append(_el("div", "admonition question", *parts))
    fact = _el("span", "md-source-file__fact", f"Last update: {_date(rng)}")
    return _el("article", "md-content__inner md-typeset", *out, _el("aside", "md-source-file", fact))


def toggle_pressbooks_show(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Pressbooks chapter with Try It boxes and Show Solution links to hidden divs."""
    out = []
    for gold in exercises:
        ident = f"q{rng.randint(100000, 999999)}"
        parts = [f"<h3>Try It {gold.number}</h3>", _paras(gold.problem)]
        if gold.solution is not None:
            show = f'<span class="show-answer collapsed" data-target="{ident}">Show Solution</span>'
            hidden = f'<div id="{ident}" class="hidden-answer" style="display: none">'
            parts.append(_el("div", "qa-wrapper", show, hidden, _paras(gold.solution), "</div>"))
        out.append(_el("div", "textbox tryit", *parts))
    out.append(_el("section", "citations-section", "<h3>Licenses and attributions</h3>"))
    return _el("section", "standard post-body", *out)


def inline_tutor_blog(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Tutoring blog's paragraphs with bold Q and Ans labels and related links between."""
    answer = rng.choice(("Ans:", "Answer:", "Sol:"))
    out = []
    for gold in exercises:
        out.append(_paras(gold.problem, f"<strong>Q{gold.number}.</strong> "))
        if gold.solution is not None:
            out.append(_paras(gold.solution, f"<strong>{answer}</strong> "))
        if rng.random() < 0.25:
            link = f'<a href="#">{rng.choice(_TOPICS)} important questions</a>'
            out.append(_el("p", "related-link", f"<em>Also read: {link}</em>"))
    out.append(_el("p", "post-tags", 'Tagged <a rel="tag" href="#">class 11</a>'))
    return _el("div", "entry-content clearfix", *out)


def inline_old_homepage(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A professor's old page: unclosed P tags, bold Problem N. and italic Solution. labels."""
    out = [f"<CENTER><B>Math {rng.randint(101, 420)} - Practice</B><BR>{_date(rng)}</CENTER>", "<HR>"]
    for gold in exercises:
        out.append(f"<P><B>Problem {gold.number}.</B> " + "\n<P>".join(map(_inline, _split(gold.problem))))
        if gold.solution is not None:
            out.append("<P><I>Solution.</I> " + "\n<P>".join(map(_inline, _split(gold.solution))))
    out.append('<HR>\n<ADDRESS><A HREF="index.html">Back to the course page</A></ADDRESS>')
    return "\n".join(out)


LAYOUTS: dict[str, Style] = {
    "heading_wiki_contest": heading_wiki_contest,
    "heading_jekyll_notes": heading_jekyll_notes,
    "dl_bootstrap_record": dl_bootstrap_record,
    "dl_drupal_fields": dl_drupal_fields,
    "table_markscheme_rows": table_markscheme_rows,
    "table_confluence_each": table_confluence_each,
    "forum_question2answer": forum_question2answer,
    "forum_xenforo_question": forum_xenforo_question,
    "end_openstax_key": end_openstax_key,
    "end_worksheet_lists": end_worksheet_lists,
    "toggle_mkdocs_details": toggle_mkdocs_details,
    "toggle_pressbooks_show": toggle_pressbooks_show,
    "inline_tutor_blog": inline_tutor_blog,
    "inline_old_homepage": inline_old_homepage,
}
