"""Renders exercises as pages in label styles by an author who had not seen the rules: the fifth blind group."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
BLANK = re.compile(r"\n[ \t]*\n\s*")
LINE = re.compile(r"[ \t]*\n[ \t]*")
SENTENCE = re.compile(r"(?<=[a-z)$][.?!])\s+(?=[A-Z])")
NAMES = ("marta_k", "Joel", "quietowl", "d.hansen", "Priya S", "tomb42", "ellipsis", "Wren", "oldabacus")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Sep", "Oct", "Nov")
TOPICS = ("Unit 2", "Warm-up", "Exam practice", "Core", "Stretch", "Revision")


def outside_math(text: str) -> bool:
    """Say whether the end of the text lies outside every formula."""
    dollars = len(re.findall(r"\$\$?", text.replace("\\$", "")))
    pairs = (("\\(", "\\)"), ("\\[", "\\]"), ("\\begin{", "\\end{"))
    return dollars % 2 == 0 and all(text.count(left) == text.count(right) for left, right in pairs)


def pieces(text: str, cut: re.Pattern[str]) -> list[str]:
    """Split the text at the cuts that lie outside formulas."""
    found, start = [], 0
    for match in cut.finditer(text):
        if outside_math(text[: match.start()]):
            found.append(text[start : match.start()])
            start = match.end()
    return [piece for piece in (*found, text[start:]) if piece.strip()]


def plain(text: str) -> str:
    """Escape the text and turn its markdown images into elements."""
    parts, start = [], 0
    for match in IMAGE.finditer(text):
        alt, source = html.escape(match[1]), html.escape(match[2])
        parts += [html.escape(text[start : match.start()], quote=False), f'<img src="{source}" alt="{alt}">']
        start = match.end()
    return "".join(parts) + html.escape(text[start:], quote=False)


def lines(text: str) -> str:
    """Write the text as one run with line breaks."""
    blocks = pieces(text.strip(), BLANK)
    return "<br><br>".join("<br>\n".join(plain(line) for line in pieces(block, LINE)) for block in blocks)


def paragraphs(text: str, by_sentence: bool = False, label: str = "") -> str:
    """Write the text as paragraphs, a sentence each where asked, with a label inside the first."""
    blocks = pieces(text.strip(), BLANK)
    if by_sentence:
        blocks = [sentence for block in blocks for sentence in pieces(block, SENTENCE)]
    return "\n".join(f"<p>{label if i == 0 else ''}{lines(block)}</p>" for i, block in enumerate(blocks))


def date(rng: random.Random) -> str:
    """Make up a date."""
    return f"{rng.choice(MONTHS)} {rng.randint(1, 28)}, {rng.randint(2012, 2024)}"


def replies(gold: Gold, exercises: Sequence[Gold], rng: random.Random) -> list[tuple[str, bool]]:
    """Mix the right answer with one or two wrong ones, in random order."""
    if gold.solution is None:
        return []
    own = gold.solution.strip()
    others = sorted({e.solution for e in exercises if e.solution and e.solution.strip() != own})
    wrong = rng.sample(others, min(len(others), rng.randint(1, 2)))
    mixed = [(gold.solution, True), *((text, False) for text in wrong)]
    rng.shuffle(mixed)
    return mixed


def wiki_your_turn(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write a MediaWiki textbook page with edit links in its headings."""

    def head(level: int, label: str, suffix: str = "") -> str:
        anchor = label.replace(" ", "_") + suffix
        link = f"/w/index.php?action=edit&amp;section={rng.randint(2, 60)}"
        return (
            f'<h{level}><span class="mw-headline" id="{anchor}">{label}</span>'
            f'<span class="mw-editsection">[<a href="{link}">edit</a>]</span></h{level}>'
        )

    out = [head(2, "Practice"), "<p>Work through these before moving on to the next page.</p>"]
    for gold in exercises:
        out += [head(3, f"Your turn {gold.number}"), paragraphs(gold.problem)]
        if gold.solution is not None:
            out += [head(4, "Worked answer", f"_{gold.number}"), paragraphs(gold.solution)]
    foot = f'<div class="printfooter">This page was last edited on {date(rng)}.</div>'
    return '<div class="mw-parser-output">\n' + "\n".join(out) + f"\n{foot}\n</div>"


def hugo_challenges(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write a static-site course page whose challenges are followed by a walkthrough."""
    out = []
    for gold in exercises:
        number, level = f"{gold.number:02d}", rng.choice(("easy", "medium", "hard"))
        slug = f"challenge-{number}"
        out.append(f'<h2 id="{slug}">Challenge #{number} <a class="anchor" href="#{slug}">&para;</a></h2>')
        out.append(
            f'<div class="badges"><span class="badge badge-{level}">{level}</span> '
            f'<span class="badge">{rng.randint(2, 6) * 5} min</span></div>'
        )
        out.append(paragraphs(gold.problem, by_sentence=True))
        if gold.solution is not None:
            out.append(f'<h3 id="{slug}-walkthrough">Walkthrough</h3>')
            out.append(paragraphs(gold.solution, by_sentence=True))
        out.append('<p class="share"><a href="#">Tweet this</a> &middot; <a href="#top">Top</a></p>\n<hr>')
    return '<article class="post-content">\n' + "\n".join(out) + "\n</article>"


def dl_task_working(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write a definition list an exercise, with one term for the task and one for the working."""
    out = ["<h2>Tutorial sheet</h2>"]
    for gold in exercises:
        out.append(f'<dl class="sheet-item" id="t{gold.number}">\n<dt>Task {gold.number}</dt>')
        out.append(f"<dd>{paragraphs(gold.problem)}</dd>")
        if gold.solution is not None:
            out.append(f"<dt>Full working</dt>\n<dd>{paragraphs(gold.solution)}</dd>")
        out.append("</dl>")
        out.append(
            f'<p class="small">[{rng.randint(2, 9)} marks] <a href="/print/t{gold.number}">Print</a></p>'
        )
    return '<div id="content-col">\n' + "\n".join(out) + "\n</div>"


def dl_quick_check(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write one definition list whose terms are questions and whose descriptions are answers."""
    out = ['<h3 class="qc-title">Quick check questions and answers</h3>', '<dl class="quick-check">']
    for gold in exercises:
        answer = "" if gold.solution is None else lines(gold.solution)
        label = f'<span class="qc-num">({gold.number})</span>'
        out.append(f'<div class="qc-row">\n<dt>{label} {lines(gold.problem)}</dt>')
        out.append(f'<dd class="qc-ans">{answer}</dd>')
        out.append(
            f'<dd class="qc-tools"><a href="#c{gold.number}">Comments ({rng.randint(0, 9)})</a> | '
            '<a href="/report">Report a mistake</a></dd>\n</div>'
        )
    return "\n".join(out) + "\n</dl>"


def table_mark_scheme(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write a revision table with a question a row and the mark scheme in the last column."""
    rows = []
    for gold in exercises:
        answer = "&nbsp;" if gold.solution is None else lines(gold.solution)
        rows.append(
            f'<tr>\n<td class="n">{gold.number}</td>\n<td>{lines(gold.problem)}</td>\n'
            f'<td class="m">{rng.randint(1, 8)}</td>\n<td>{answer}</td>\n</tr>'
        )
    return (
        f'<p>Updated by the department, {date(rng)}.</p>\n<table class="table table-striped revision">\n'
        "<thead><tr><th>No.</th><th>Question</th><th>Marks</th><th>Mark scheme</th></tr></thead>\n"
        "<tbody>\n" + "\n".join(rows) + "\n</tbody>\n</table>"
    )


def table_dokuwiki_cards(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write a small DokuWiki table an exercise, with the labels in its first column."""
    out = []
    for gold in exercises:
        rows = [
            ("Topic", rng.choice(TOPICS)),
            ("Question", lines(gold.problem)),
            ("Difficulty", "*" * rng.randint(1, 3)),
        ]
        if gold.solution is not None:
            rows.append(("How to solve it", lines(gold.solution)))
        out.append(
            '<div class="table sectionedit1"><table class="inline">\n<thead><tr class="row0">'
            f'<th class="col0" colspan="2">Ex. {gold.number}</th></tr></thead>\n<tbody>'
        )
        out += [
            f'<tr class="row{i}"><th class="col0 leftalign">{label}</th><td class="col1">{cell}</td></tr>'
            for i, (label, cell) in enumerate(rows, 1)
        ]
        link = f'<a href="?do=edit&amp;rev={rng.randint(1000, 9999)}">Edit</a>'
        out.append(f'</tbody></table></div>\n<div class="secedit">{link}</div>')
    return "\n".join(out)


def forum_q2a_best(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write Question2Answer threads in which the asker selected a best answer."""

    def post(kind: str, votes: int, flag: str, text: str, meta: str) -> str:
        return (
            f'<div class="qa-voting"><span class="qa-netvote-count-data">{votes:+d}</span>'
            f'<span class="qa-netvote-count-pad"> votes</span></div>\n{flag}'
            f'<div class="qa-{kind}-content qa-post-content">{paragraphs(text)}</div>\n'
            f'<span class="qa-{kind}-meta">{meta} ({rng.randint(1, 90) * 20} points)</span>'
        )

    mark = (
        '<div class="qa-a-selection"><div class="qa-a-selected">&nbsp;</div>'
        '<div class="qa-a-selected-text">Best answer</div></div>\n'
    )
    out = []
    for gold in exercises:
        key, day = 400 + 7 * gold.number, f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"
        users = [f'<a class="qa-user-link" href="#">{name}</a>' for name in rng.sample(NAMES, 4)]
        asked = f"asked <time>{day}</time> by {users[0]}"
        out.append(
            f'<div class="qa-thread">\n<h2><a href="/{key}/stuck">Stuck on number {gold.number}</a></h2>'
        )
        out.append(f'<div class="qa-q-view" id="q{key}">')
        out.append(post("q-view", rng.randint(0, 4), "", gold.problem, asked))
        out.append(f'<span class="qa-view-count">{rng.randint(40, 900)} views</span>\n</div>')
        answers = replies(gold, exercises, rng)
        out.append(
            f'<h3>{len(answers)} Answer{"" if len(answers) == 1 else "s"}</h3>\n<div class="qa-a-list">'
        )
        for i, (text, right) in enumerate(answers, 1):
            name = "qa-a-list-item qa-a-list-item-selected" if right else "qa-a-list-item"
            votes = rng.randint(1, 9) if right else rng.randint(-2, 6)
            meta = f"answered <time>{day}</time> by {users[i]}"
            body = post("a-item", votes, mark if right else "", text, meta)
            out.append(f'<div class="{name}" id="a{key + i}">\n{body}\n</div>')
        out.append("</div>\n</div>")
    return "\n".join(out)


def forum_scored_replies(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write bulletin-board threads whose replies carry vote scores and no accepted mark."""

    def post(place: int, author: str, day: str, text: str, vote: str) -> str:
        return (
            f'<article class="message message--post" data-author="{author}">\n'
            f'<div class="message-user"><h4 class="message-name">{author}</h4>'
            f'<span class="userTitle">Member</span> Messages: {rng.randint(3, 2000)}</div>\n'
            f'<header class="message-attribution"><time>{day}</time> <a href="#">#{place}</a></header>\n'
            f'<div class="message-body"><div class="bbWrapper">{lines(text)}</div></div>\n{vote}'
            '<footer class="message-actions"><a href="#">Report</a> <a href="#">Reply</a></footer>\n'
            "</article>"
        )

    out = []
    for gold in exercises:
        answers, best = replies(gold, exercises, rng), rng.randint(5, 24)
        users, day = rng.sample(NAMES, 4), date(rng)
        out.append(
            f'<section class="thread" id="thread-{2310 + gold.number}">\n<h2 class="p-title-value">'
            f'<span class="label">Question</span> Homework help, problem {gold.number}</h2>'
        )
        out.append(post(1, users[0], day, gold.problem, ""))
        for i, (text, right) in enumerate(answers, 1):
            score = best if right else rng.randint(-3, best - 3)
            vote = (
                '<div class="message-vote"><a class="contentVote-up" href="#">Upvote</a> '
                f'<span class="contentVote-score" data-score="{score}">{score}</span> '
                '<a class="contentVote-down" href="#">Downvote</a></div>\n'
            )
            out.append(post(i + 1, users[i], day, text, vote))
        views = rng.randint(60, 3000)
        out.append(f'<div class="thread-foot">Replies: {len(answers)} | Views: {views}</div>\n</section>')
    return "\n".join(out)


def end_selected_answers(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write a textbook section whose numbered list is answered under a heading at the end."""
    items = "\n".join(f'<li value="{g.number}" id="pr{g.number}">{lines(g.problem)}</li>' for g in exercises)
    answers = "\n".join(
        f'<p class="ans"><b>{g.number}.</b> {lines(g.solution)}</p>'
        for g in exercises
        if g.solution is not None
    )
    return (
        f"<h2>Problems for section {rng.randint(1, 9)}.{rng.randint(1, 5)}</h2>\n"
        f'<ol class="problems">\n{items}\n</ol>\n<p class="nav"><a href="prev.html">Previous</a> | '
        '<a href="toc.html">Contents</a> | <a href="next.html">Next</a></p>\n'
        f'<h2>Answers to selected problems</h2>\n{answers}\n<p class="copyright">&copy; '
        f'{rng.randint(2009, 2023)} the authors. <a href="errata.html">Errata</a></p>'
    )


def end_bookdown_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write a book chapter with chapter-wise numbers and its solutions in a closing section."""
    chapter = rng.randint(2, 11)

    def head(section: int, title: str) -> str:
        number = f'<span class="header-section-number">{chapter}.{section}</span>'
        return f'<div class="section level2"><h2>{number} {title}</h2>'

    out = [head(9, "Exercises")]
    for gold in exercises:
        number = f"{chapter}.{gold.number}"
        label = f'<span class="exr-label"><strong>Exercise {number}</strong></span> '
        body = paragraphs(gold.problem, label=label)
        out.append(f'<div class="exercise" id="exr:{number}">\n{body}\n</div>')
    out.append('</div>\n<p class="edit-page"><a href="https://git.example/e">Suggest an edit</a></p>')
    out.append(head(10, "Solutions"))
    for gold in exercises:
        if gold.solution is not None:
            number = f"{chapter}.{gold.number}"
            out.append(f'<div class="sol-block">\n<p><a href="#exr:{number}"><em>{number}</em></a></p>')
            out.append(paragraphs(gold.solution) + "\n</div>")
    return "\n".join(out) + "\n</div>"


def toggle_reveal_button(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write worksheet boxes whose button unhides the next block."""
    out = [
        "<script>function flip(k){var e=document.getElementById(k);"
        "e.style.display=e.style.display=='none'?'block':'none';}</script>"
    ]
    for gold in exercises:
        out.append(
            f'<div class="ws-box">\n<div class="ws-bar">'
            f'<span class="ws-no">Question {gold.number}</span> '
            f'<span class="ws-tag">{rng.choice(TOPICS)}</span> '
            f'<span class="ws-pts">{rng.randint(1, 5)} pt</span></div>'
        )
        out.append(f'<div class="ws-text">{paragraphs(gold.problem)}</div>')
        if gold.solution is not None:
            key, body = f"w{gold.number}", paragraphs(gold.solution, by_sentence=True)
            out.append(f'<button type="button" class="btn" onclick="flip(\'{key}\')">Reveal working</button>')
            out.append(f'<div id="{key}" class="ws-key" style="display:none">\n{body}\n</div>')
        out.append("</div>")
    return "\n".join(out)


def toggle_unfold_link(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write list items with a link that a script turns into a toggle of a hidden block."""
    out = [f'<p class="byline">By {rng.choice(NAMES)}, {date(rng)}</p>\n<ul class="drill list-unstyled">']
    for gold in exercises:
        key = f"drill-{gold.number}-how"
        answer = "" if gold.solution is None else paragraphs(gold.solution)
        out.append(f'<li class="drill-item">\n<strong class="drill-n">{gold.number})</strong>')
        out.append(f'<div class="drill-q">{lines(gold.problem)}</div>')
        out.append('<div class="drill-actions"><a href="#" class="bookmark">Save for later</a></div>')
        out.append(f'<a href="#{key}" class="js-unfold" data-target="#{key}">Show/hide solution</a>')
        out.append(f'<div id="{key}" class="drill-how is-hidden" aria-hidden="true">{answer}</div>\n</li>')
    out.append(
        "</ul>\n<script>document.querySelectorAll('.js-unfold').forEach(function(a){"
        "a.onclick=function(ev){ev.preventDefault();"
        "document.querySelector(a.dataset.target).classList.toggle('is-hidden');};});</script>"
    )
    return "\n".join(out)


def inline_q_and_a_bold(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write a blog post with bold numbered letters before questions and answers."""
    out = [f'<div class="entry-meta">Posted on {date(rng)} by {rng.choice(NAMES)}</div>']
    out.append('<div class="entry-content">')
    for i, gold in enumerate(exercises):
        out.append(paragraphs(gold.problem, label=f"<strong>Q{gold.number}.</strong> "))
        if gold.solution is not None:
            out.append(paragraphs(gold.solution, label=f"<strong>A{gold.number}.</strong> "))
        if i % 3 == 2:
            out.append('<div class="sharedaddy"><a href="#">Facebook</a> <a href="#">Pin it</a></div>')
    return "\n".join(out) + "\n</div>"


def inline_ques_ans_run(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Write a coaching-site page with question and answer in one paragraph, parted by a line break."""
    out = ["<p>Practise the important questions given below for your board exam.</p>"]
    for gold in exercises:
        answer = "" if gold.solution is None else f"<br>\n<b>Ans:</b> {lines(gold.solution)}"
        out.append(f'<p class="qa"><b>Ques {gold.number}:</b> {lines(gold.problem)}{answer}</p>')
        likes = f"<span>{rng.randint(3, 400)} likes</span>"
        out.append(f'<div class="likes">{likes} <a href="/app">Download the app</a></div>')
    return "\n".join(out)


LAYOUTS: dict[str, Style] = {
    "wiki_your_turn": wiki_your_turn,
    "hugo_challenges": hugo_challenges,
    "dl_task_working": dl_task_working,
    "dl_quick_check": dl_quick_check,
    "table_mark_scheme": table_mark_scheme,
    "table_dokuwiki_cards": table_dokuwiki_cards,
    "forum_q2a_best": forum_q2a_best,
    "forum_scored_replies": forum_scored_replies,
    "end_selected_answers": end_selected_answers,
    "end_bookdown_key": end_bookdown_key,
    "toggle_reveal_button": toggle_reveal_button,
    "toggle_unfold_link": toggle_unfold_link,
    "inline_q_and_a_bold": inline_q_and_a_bold,
    "inline_ques_ans_run": inline_ques_ans_run,
}
