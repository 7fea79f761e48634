"""Renders exercises as pages in label styles by an author who had not seen the rules: the second blind group.

It was measured before and after the rules were mended on the first group, and opened only then.
"""

from __future__ import annotations

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_MATH = r"\$\$.*?\$\$|\$[^$]*\$|\\\(.*?\\\)|\\\[.*?\\\]|\\begin\{(\w+\*?)\}.*?\\end\{\1\}"
_KEPT = re.compile(_MATH + r"|!\[[^\]]*\]\([^)\s]*\)", re.S)
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]*)\)")
_NAMES = ("mlindqvist", "Priya S.", "tobias_w", "J. Okafor", "ana.ferreira", "HKim", "oldtimer52", "r_dubois")
_LEVELS = ("Easy", "Moderate", "Challenging")
_MONTHS = ("January", "March", "April", "June", "September", "November")


def _spans(text: str) -> list[tuple[bool, str]]:
    """Cut a text into (is formula or image, piece) pairs."""
    pieces: list[tuple[bool, str]] = []
    last = 0
    for match in _KEPT.finditer(text):
        pieces += [(False, text[last : match.start()]), (True, match.group(0))]
        last = match.end()
    return [*pieces, (False, text[last:])]


def _inline(text: str) -> str:
    """Escape a text for HTML, with its images as img elements and its line breaks as br elements."""
    out: list[str] = []
    for kept, piece in _spans(text.strip()):
        image = _IMAGE.fullmatch(piece) if kept else None
        if image:
            out.append(f'<img src="{html.escape(image[2])}" alt="{html.escape(image[1])}">')
        else:
            safe = html.escape(piece, quote=False)
            out.append(safe if kept else re.sub(r"[ \t]*\n[ \t]*", "<br>\n", safe))
    return "".join(out)


def _paragraphs(text: str) -> list[str]:
    """Split a text at its own blank lines, outside of formulas."""
    marked = "".join(p if kept else re.sub(r"\n\s*\n", "\x00", p) for kept, p in _spans(text.strip()))
    return [part.strip() for part in marked.split("\x00") if part.strip()]


def _sentences(text: str) -> list[str]:
    """Split a text into paragraphs and those into sentences, outside of formulas."""
    out: list[str] = []
    stop = re.compile(r"(?<=[a-z)]{2}[.!?])\s+(?=[A-Z])")
    for part in _paragraphs(text):
        marked = "".join(p if kept else stop.sub("\x00", p) for kept, p in _spans(part))
        out += [sentence for sentence in marked.split("\x00") if sentence.strip()]
    return out


def _ps(parts: Sequence[str], lead: str = "") -> str:
    """Wrap each part in a paragraph, the first one with a leading label."""
    return "\n".join(f"<p>{lead if i == 0 else ''}{_inline(part)}</p>" for i, part in enumerate(parts))


def _brs(text: str) -> str:
    """Join the paragraphs of a text with double line breaks."""
    return "<br />\n<br />\n".join(_inline(part) for part in _paragraphs(text))


def lumen_show_answer(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Pressbooks at Lumen: exercise textboxes with a span that a script turns into a toggle."""
    chapter, heading = rng.randint(1, 12), rng.choice(("Try It", "Practice", "Example"))
    shown = rng.choice(("Show Solution", "Show Answer", "Reveal Worked Solution"))
    out = ["<p>The questions below go with the reading on the previous page.</p>"]
    for g in exercises:
        target = f"q{rng.randint(100000, 999999)}"
        out.append(f'<div class="textbox exercises">\n<h3>{heading} {chapter}.{g.number}</h3>')
        out.append(_ps(_paragraphs(g.problem)))
        if g.solution is not None:
            out.append(
                f'<div class="qa-wrapper" style="display: block"><span class="show-answer collapsed" '
                f'style="cursor: pointer" data-target="{target}">{shown}</span>\n'
                f'<div id="{target}" class="hidden-answer" style="display: none">\n'
                f"{_ps(_sentences(g.solution))}\n</div></div>"
            )
        out.append("</div>")
        if rng.random() < 0.3:
            out.append('<p><a href="/wp-content/video.txt">View the transcript for the video here.</a></p>')
    return "\n".join(out)


def contest_wiki(exercises: Sequence[Gold], rng: random.Random) -> str:
    """MediaWiki contest page: a heading a problem, a lower heading for its solution, edit links."""
    word = rng.choice(("Problem", "Question", "Exercise"))
    below = rng.choice(("Solution", "Solution 1", "Worked solution"))

    def headline(level: int, text: str, anchor: str) -> str:
        edit = f'<span class="mw-editsection">[<a href="/wiki/edit#{anchor}">edit</a>]</span>'
        return f'<h{level}><span class="mw-headline" id="{anchor}">{text}</span>{edit}</h{level}>'

    out = ['<div class="mw-parser-output">']
    for g in exercises:
        out += [headline(2, f"{word} {g.number}", f"{word}_{g.number}"), _ps(_paragraphs(g.problem))]
        out.append(headline(3, below, f"{below.replace(' ', '_')}_{g.number}"))
        if g.solution is not None:
            out.append(_ps(_sentences(g.solution)))
        else:
            text = "<i>This problem needs a solution. If you have one, please help us out by adding it.</i>"
            out.append(f'<table class="messagebox notice"><tr><td>{text}</td></tr></table>')
    links = '<ul><li><a href="/wiki/Contest_archive">Contest archive</a></li></ul>\n</div>'
    return "\n".join([*out, headline(2, "See also", "See_also"), links])


def mkdocs_details(exercises: Sequence[Gold], rng: random.Random) -> str:
    """MkDocs Material: a question admonition followed by a collapsed details block."""
    word = rng.choice(("Task", "Challenge", "Your turn"))
    summary = rng.choice(("Our solution", "Show me how", "Possible solution", "Click to check your work"))
    link = '<a class="headerlink" href="#{0}" title="Permanent link">&para;</a>'
    out = ['<h2 id="practice">Practice' + link.format("practice") + "</h2>"]
    for g in exercises:
        out.append(f'<div class="admonition question">\n<p class="admonition-title">{word} {g.number}</p>')
        out.append(_ps(_paragraphs(g.problem)) + "\n</div>")
        if g.solution is not None:
            out.append(f'<details class="success">\n<summary>{summary}</summary>')
            out.append(_ps(_paragraphs(g.solution)) + "\n</details>")
    stamp = f"Last update: {rng.choice(_MONTHS)} {rng.randint(1, 28)}, 2023"
    return "\n".join([*out, f'<aside class="md-source-file"><span>{stamp}</span></aside>'])


def jupyter_book(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Jupyter Book with sphinx-exercise: exercise and solution admonitions that refer to each other."""
    section, dropdown = rng.randint(2, 9), rng.choice((" dropdown", ""))
    out = ['<section id="exercises">\n<h2>Exercises<a class="headerlink" href="#exercises">#</a></h2>']
    for g in exercises:
        label = f"Exercise {section}.{g.number}"
        out.append(
            f'<div class="exercise admonition" id="ex-{section}-{g.number}">\n<p class="admonition-title">'
            f'<span class="caption-number">{label} </span></p>\n<section id="exercise-content">\n'
            f"{_ps(_paragraphs(g.problem))}\n</section>\n</div>"
        )
        if g.solution is not None:
            out.append(
                f'<div class="solution{dropdown} admonition" id="sol-{section}-{g.number}">\n'
                f'<p class="admonition-title">Solution to<a class="reference internal" '
                f'href="#ex-{section}-{g.number}"> {label}</a></p>\n<section id="solution-content">\n'
                f"{_ps(_sentences(g.solution))}\n</section>\n</div>"
            )
    return "\n".join([*out, "</section>"])


def moodle_review(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Moodle quiz review: question blocks with state and marks, the feedback holds the solution."""
    right = rng.random() < 0.4
    out = ['<form action="/mod/quiz/review.php" method="post" class="questionflagsaveform"><div>']
    for g in exercises:
        out.append(
            f'<div id="question-{rng.randint(100, 999)}-{g.number}" class="que shortanswer deferredfeedback '
            f'notanswered"><div class="info"><h3 class="no">Question <span class="qno">{g.number}</span></h3>'
            '<div class="state">Not answered</div>'
            f'<div class="grade">Marked out of {rng.randint(1, 4)}.00</div>'
            '<div class="questionflag"><a class="aabtn" role="button">Flag question</a></div></div>'
        )
        out.append('<div class="content"><div class="formulation"><h4 class="accesshide">Question text</h4>')
        out.append(f'<div class="qtext">{_ps(_paragraphs(g.problem))}</div></div>')
        if g.solution is not None:
            out.append('<div class="outcome"><h4 class="accesshide">Feedback</h4><div class="feedback">')
            kind, lead = ("rightanswer", "The correct answer is: ") if right else ("generalfeedback", "")
            out.append(f'<div class="{kind}">{_ps(_paragraphs(g.solution), lead)}</div></div></div>')
        out.append("</div></div>")
    return "\n".join([*out, '</div></form>\n<div class="submitbtns"><a href="#">Finish review</a></div>'])


def discourse_topics(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Discourse topics: replies with likes, on some pages the solved plugin marks the right one."""
    solved = rng.random() < 0.6
    check = '<span class="accepted-answer" title="Accepted answer">&#10003; Solution</span> '

    def post(name: str, place: int, body: str, likes: int, mark: str) -> str:
        date, plural = f"March {place * 5 + rng.randint(0, 4)}, 2021", "Like" if likes == 1 else "Likes"
        return (
            f'<article class="topic-post boxed"><div class="topic-meta-data"><a class="creator">{name}</a> '
            f'<time class="post-time">{date}</time> <span class="post-number">#{place}</span></div>\n'
            f'<div class="cooked">{body}</div>\n<div class="post-controls">{mark}'
            f'<span class="post-likes">{likes} {plural}</span> <button>Share</button></div></article>'
        )

    out: list[str] = []
    for g in exercises:
        out.append(f'<div class="topic"><h1><a href="/t/{g.number}">Help with no. {g.number}</a></h1>')
        names = iter(rng.sample(_NAMES, 4))
        out.append(post(next(names), 1, _ps(_paragraphs(g.problem)), rng.randint(0, 3), ""))
        if g.solution is None:
            out.append('<p class="no-replies">No replies yet. Be the first to answer.</p>\n</div>')
            continue
        others = [o.solution for o in exercises if o.solution and o.solution != g.solution]
        wrong = rng.sample(others, min(len(others), rng.randint(1, 2)))
        replies = [(g.solution, True), *((text, False) for text in wrong)]
        rng.shuffle(replies)
        best = rng.randint(5, 14)
        for place, (text, good) in enumerate(replies, 2):
            mark = check if good and solved else ""
            likes = rng.randint(2, 9) if solved else best if good else rng.randint(0, best - 2)
            out.append(post(next(names), place, _ps(_paragraphs(text)), likes, mark))
        out.append("</div>")
    return "\n".join(out)


def word_table(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Word's "save as web page": a grid with number, question, marks and model answer."""
    names = (("No.", "Question", "Model answer"), ("#", "Problem", "Solution"), ("Item", "Task", "Answer"))
    heads, marks = rng.choice(names), rng.random() < 0.5

    def cell(parts: Sequence[str], width: int) -> str:
        inner = "\n".join(f"<p class=MsoNormal><span lang=EN-GB>{part}</span></p>" for part in parts)
        return f"<td width={width} valign=top style='border:solid windowtext 1.0pt'>{inner}</td>"

    def row(number: str, problem: Sequence[str], mark: str, answer: Sequence[str]) -> str:
        middle = cell([mark], 50) if marks else ""
        return f"<tr>{cell([number], 40)}{cell(problem, 260)}{middle}{cell(answer, 300)}</tr>"

    out = ["<div class=WordSection1>\n<p class=MsoTitle>Worksheet with key</p>"]
    out.append("<table class=MsoTableGrid border=1 cellspacing=0 cellpadding=0 style='border:none'>")
    out.append(row(f"<b>{heads[0]}</b>", [f"<b>{heads[1]}</b>"], "<b>Marks</b>", [f"<b>{heads[2]}</b>"]))
    for g in exercises:
        answer = ["&nbsp;"] if g.solution is None else [_inline(part) for part in _sentences(g.solution)]
        problem = [_inline(part) for part in _paragraphs(g.problem)]
        out.append(row(f"{g.number}.", problem, f"[{rng.randint(1, 6)}]", answer))
    return "\n".join([*out, "</table>\n<p class=MsoNormal><o:p>&nbsp;</o:p></p>\n</div>"])


def nineties_end(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Hand-written page of the nineties: problems on top, answers by number at the end, anchors between."""
    title = rng.choice(("ANSWERS", "Solutions to the Problems", "Answers to Selected Problems"))
    dot, top = rng.choice((".", ")")), '<A HREF="#top"><FONT SIZE="-1">Back to top</FONT></A>'
    out = ['<A NAME="top"></A><CENTER><FONT SIZE="+2"><B>Problem Set</B></FONT></CENTER>\n<HR>']
    for g in exercises:
        out.append(f'<P><A NAME="p{g.number}"></A><FONT COLOR="#800000"><B>{g.number}{dot}</B></FONT>')
        out.append("\n<P>".join(_inline(part) for part in _paragraphs(g.problem)))
        if g.solution is not None:
            out.append(f'<BR><FONT SIZE="-1">[<A HREF="#s{g.number}">see answer</A>]</FONT>')
    out.append(f'<P ALIGN="RIGHT">{top}\n<HR>\n<CENTER><FONT SIZE="+1"><B>{title}</B></FONT></CENTER>')
    for g in exercises:
        if g.solution is not None:
            out.append(f'<P><A NAME="s{g.number}"></A><FONT COLOR="#800000"><B>{g.number}{dot}</B></FONT>')
            out.append("\n<P>".join(_inline(part) for part in _paragraphs(g.solution)))
    return "\n".join([*out, f"<HR>{top}<BR><I>Page maintained by {rng.choice(_NAMES)}</I>"])


def blogger_qa(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Blogger post: questions and answers one after another, with line breaks for all structure."""
    ask, reply = rng.choice((("Q.{0}", "Ans."), ("Q{0}:", "A{0}:"), ("Ques {0}.", "Sol."), ("Q-{0}", "Ans:")))
    out = ['<div class="post-body entry-content"><div dir="ltr" style="text-align: left;">']
    out.append("Hello students, here are the important questions of this chapter.<br />\n<br />")
    for i, g in enumerate(exercises):
        out.append(f'<span style="color: red;"><b>{ask.format(g.number)}</b></span> {_brs(g.problem)}<br />')
        if g.solution is not None:
            out.append(f"<b>{reply.format(g.number)}</b> {_brs(g.solution)}<br />")
        out.append("<br />")
        if i % 3 == 1:
            out.append('<div style="text-align: center;"><a href="/p/n"><i>Also read: Notes</i></a></div>')
    out.append(f'</div></div>\n<div class="post-footer"><span>Posted by {rng.choice(_NAMES)}</span>')
    return "\n".join([*out, '<a class="share-button" href="#">BlogThis!</a></div>'])


def quarto_runin(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Quarto theorem environments: bold run-in exercise labels, emphasised run-in solution labels."""
    chapter, tagged = rng.randint(1, 9), rng.random() < 0.5
    label = rng.choice(("Exercise", "Problem"))
    out = [f'<section id="sec-ex" class="level2"><h2><span>{chapter}.6</span> Exercises</h2>']
    for g in exercises:
        tag = f" ({rng.choice(_LEVELS)})" if tagged else ""
        out.append(f'<div id="exr-{g.number}" class="theorem {label.lower()}">')
        lead = f'<span class="theorem-title"><strong>{label} {chapter}.{g.number}{tag}</strong></span> '
        out.append(_ps(_paragraphs(g.problem), lead) + "\n</div>")
        if g.solution is not None:
            lead = '<span class="proof-title"><em>Solution</em>. </span>'
            out.append(f'<div class="proof solution">\n{_ps(_paragraphs(g.solution), lead)}\n</div>')
    return "\n".join([*out, "</section>\n<div class='toc-actions'><a href='#'>Report an issue</a></div>"])


def latex2html_dl(exercises: Sequence[Gold], rng: random.Random) -> str:
    """LaTeX2HTML description environment: terms with the labels, definitions with the texts."""
    ask, reply = rng.choice((("Problem {0}.", "Solution."), ("Exercise {0}", "Answer"), ("P{0}", "S{0}")))
    out = ['<H2><A NAME="SECTION00040000000000000000">\nReview problems</A>\n</H2>\n<P>\n<DL>']
    for g in exercises:
        pairs = [(ask.format(g.number), g.problem)]
        if g.solution is not None:
            pairs.append((reply.format(g.number), g.solution))
        for term, text in pairs:
            body = "\n<P>\n".join(_inline(part) for part in _paragraphs(text))
            out.append(f"<DT><STRONG>{term}</STRONG></DT>\n<DD>{body}\n<P>\n</DD>")
    stamp = f"{rng.randint(1, 28)} {rng.choice(_MONTHS)} {rng.randint(1998, 2008)}"
    return "\n".join([*out, f"</DL>\n<P>\n<HR>\n<ADDRESS>\n{rng.choice(_NAMES)}\n{stamp}\n</ADDRESS>"])


def pandoc_list(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Pandoc or GitBook notes: a numbered list whose items hold a small list with level and solution."""
    lead = rng.choice(("<em>Solution:</em> ", "<strong>Answer:</strong> ", "Solution. ", "<em>Answer</em>: "))
    level = rng.random() < 0.6
    out = ['<h2 id="check-your-understanding">Check your understanding</h2>\n<ol class="problems" type="1">']
    for g in exercises:
        out.append(f'<li value="{g.number}">{_ps(_paragraphs(g.problem))}')
        items = [f"<li><p>Level: {rng.choice(_LEVELS).lower()}</p></li>"] if level else []
        if g.solution is not None:
            items.append(f"<li>{_ps(_paragraphs(g.solution), lead)}</li>")
        out.append("<ul>\n" + "\n".join(items) + "\n</ul></li>" if items else "</li>")
    return "\n".join([*out, "</ol>\n<p><a href='edit'>Edit this page</a></p>"])


LAYOUTS: dict[str, Style] = {
    "lumen_show_answer": lumen_show_answer,
    "contest_wiki": contest_wiki,
    "mkdocs_details": mkdocs_details,
    "jupyter_book": jupyter_book,
    "moodle_review": moodle_review,
    "discourse_topics": discourse_topics,
    "word_table": word_table,
    "nineties_end": nineties_end,
    "blogger_qa": blogger_qa,
    "quarto_runin": quarto_runin,
    "latex2html_dl": latex2html_dl,
    "pandoc_list": pandoc_list,
}
