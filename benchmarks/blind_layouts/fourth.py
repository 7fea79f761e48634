"""Renders exercises as pages in label styles by an author who had not seen the rules: the fourth blind group."""

from __future__ import annotations

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_ATOM = re.compile(
    r"!\[(?P<alt>[^\]]*)\]\((?P<src>[^)\s]+)\)|\$\$.+?\$\$|\$(?:(?!!\[)[^$])+\$|\\[(\[].+?\\[)\]]", re.DOTALL
)
_SENTENCE_END = re.compile(r"(?:(?<=[a-z]{4}[.!?])|(?<=[$)][.!?]))[ \t]+(?=[A-Z])")
_BLANK = re.compile(r"\n[ \t]*\n\s*")
_AUTHORS = ("m_okafor", "Lena Brandt", "quietcircle", "T. Ruiz", "pgupta88", "Ana-Maria", "old_tutor", "jsk")
_TAGS = ("warm-up", "revision", "unit-3", "exam-prep", "core", "extension", "self-study")
_LEVELS = ("Easy", "Medium", "Hard")


def _words(text: str) -> str:
    """Escape text that holds neither formulas nor images, with line ends as <br>."""
    return _BLANK.sub("<br><br>", html.escape(text, quote=False)).replace("\n", "<br>\n")


def _inline(text: str) -> str:
    """Render a text as inline HTML with its formulas kept and its images as <img>."""
    out, at, text = [], 0, text.strip()
    for atom in _ATOM.finditer(text):
        out.append(_words(text[at : atom.start()]))
        if atom["src"] is None:
            out.append(html.escape(atom[0], quote=False))
        else:
            out.append(f'<img src="{html.escape(atom["src"])}" alt="{html.escape(atom["alt"])}">')
        at = atom.end()
    return "".join(out) + _words(text[at:])


def _sentences(text: str) -> list[str]:
    """Split a text at sentence ends that lie outside formulas and images."""
    kept = [(atom.start(), atom.end()) for atom in _ATOM.finditer(text)]
    out, at = [], 0
    for gap in _SENTENCE_END.finditer(text):
        if not any(start < gap.start() < end for start, end in kept):
            out.append(text[at : gap.start()])
            at = gap.end()
    return [*out, text[at:]]


def _paras(text: str) -> str:
    """Render a text as <p> elements, one for each of its own paragraphs."""
    return "\n".join(f"<p>{_inline(part)}</p>" for part in _BLANK.split(text.strip()))


def _spread(text: str) -> str:
    """Render a text as <p> elements, one for each sentence."""
    parts = _BLANK.split(text.strip())
    return "\n".join(f"<p>{_inline(line)}</p>" for part in parts for line in _sentences(part))


def _broken(text: str) -> str:
    """Render a text as one inline run with a <br> after each sentence."""
    return "<br>\n".join(map(_inline, _sentences(text.strip())))


def _date(rng: random.Random) -> str:
    """Make up a date as sites print it."""
    month = rng.choice(("Feb", "May", "Sep", "Nov"))
    return f"{month} {rng.randint(1, 28)}, {rng.randint(2009, 2024)}"


def _wrong(exercises: Sequence[Gold], gold: Gold, rng: random.Random) -> list[str]:
    """Pick one to three wrong answers to an exercise out of the other exercises' solutions."""
    pool = sorted({g.solution for g in exercises if g.solution is not None} - {gold.solution})
    return rng.sample(pool, min(len(pool), rng.randint(1, 3)))


def wiki_sections(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 1: a MediaWiki article with a section a problem and a subsection for its solution."""

    def heading(level: int, text: str, anchor: str, section: int) -> str:
        """Write a section heading with its edit link."""
        link = f'[<a href="/wiki/index.php?title=Problems&amp;action=edit&amp;section={section}">edit</a>]'
        title = f'<span class="mw-headline" id="{anchor}">{text}</span>'
        return f'<h{level}>{title}<span class="mw-editsection">{link}</span></h{level}>'

    out, section = ['<div class="mw-parser-output">'], 0
    for gold in exercises:
        section += 1
        out += [heading(2, f"Problem {gold.number}", f"Problem_{gold.number}", section), _paras(gold.problem)]
        if gold.solution is not None:
            section += 1
            out += [heading(3, "Solution", f"Solution_{section}", section), _spread(gold.solution)]
    out.append(f'<div class="printfooter">This page was last edited on {_date(rng)}.</div></div>')
    return "\n".join(out)


def blog_tasks(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 1: a Jekyll post whose <h3> counts the tasks and whose <h4> opens the worked answer."""
    out = ['<article class="post-content e-content">']
    for gold in exercises:
        stars = rng.randint(1, 3)
        anchor = f'<a class="anchor-heading" href="#task-{gold.number}" aria-label="Permalink">#</a>'
        out.append(f'<h3 id="task-{gold.number}">{anchor} Task {gold.number}</h3>')
        out.append(f'<p class="post-meta">Difficulty {"★" * stars}{"☆" * (3 - stars)}</p>')
        out.append(_spread(gold.problem))
        if gold.solution is not None:
            out += [f'<h4 id="worked-answer-{gold.number}">Worked answer</h4>', _paras(gold.solution)]
        out.append("<hr>")
    out.append(f'<p class="post-meta">Written by {rng.choice(_AUTHORS)} · {_date(rng)}</p></article>')
    return "\n".join(out)


def pressbooks_try_it(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 2: Pressbooks "Try It" boxes with the solution in <details>."""
    out, chapter = [], rng.randint(1, 9)
    for gold in exercises:
        out.append('<div class="textbox textbox--exercises"><header class="textbox__header">')
        out.append(f'<p class="textbox__title">Try It {chapter}.{gold.number}</p></header>')
        out.append(f'<div class="textbox__content">{_paras(gold.problem)}')
        if gold.solution is not None:
            out.append(f"<details><summary>Show Solution</summary>\n{_spread(gold.solution)}\n</details>")
        out.append("</div></div>")
        out.append('<p class="share-tools"><a href="#">Share</a> | <a href="#">Report an error</a></p>')
    return "\n".join(out)


def course_glossary(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 3: an old course page with one <dl>, the exercise in the first <dd>, its answer in the next."""
    out = ['<dl class="exlist">']
    for gold in exercises:
        note = f"<small>[{rng.randint(2, 10)} points, {rng.choice(_LEVELS).lower()}]</small>"
        out.append(f'<dt><a name="ex{gold.number}"></a><b>Ex. {gold.number}</b> {note}</dt>')
        out.append(f"<dd>{_inline(gold.problem)}</dd>")
        if gold.solution is not None:
            out.append(f'<dd class="ans"><i>Ans.</i> {_broken(gold.solution)}</dd>')
    out.append('</dl>\n<p><a href="#top">Back to top</a></p>')
    return "\n".join(out)


def mark_scheme_table(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 4: a revision site's mark scheme with a row a question and an empty cell for no answer."""
    out = ['<div class="table-responsive"><table class="table table-striped markscheme">\n<thead><tr>']
    out += [f'<th scope="col">{head}</th>' for head in ("No.", "Question", "Suggested answer", "Marks")]
    out.append("</tr></thead>\n<tbody>")
    for gold in exercises:
        key = "" if gold.solution is None else _paras(gold.solution)
        out.append(f'<tr><td class="text-center">{gold.number}</td><td>{_inline(gold.problem)}</td>')
        out.append(f'<td>{key}</td><td class="text-center">{rng.randint(1, 8)}</td></tr>')
    out.append("</tbody></table></div>")
    return "\n".join(out)


def q2a_best_answer(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 5: Question2Answer threads in which the asker selected the best answer."""

    def post(text: str, votes: int, ident: int, selected: bool) -> str:
        """Write one answer with its votes."""
        chosen = " qa-a-list-item-selected" if selected else ""
        mark = '<div class="qa-a-selection"><div class="qa-a-selected" title="Best answer">&nbsp;</div>'
        mark += '<div class="qa-a-selected-text">Best answer</div></div>'
        return (
            f'<div class="qa-a-list-item{chosen}" id="a{ident}">\n<div class="qa-voting qa-voting-net">'
            f'<span class="qa-netvote-count"><span class="qa-netvote-count-data">{votes:+d}</span>'
            '<span class="qa-netvote-count-pad"> votes</span></span></div>\n'
            f'<div class="qa-a-item-main">{mark if selected else ""}\n'
            f'<div class="qa-a-item-content qa-post-content">{_paras(text)}</div>\n'
            f'<span class="qa-a-item-meta">answered <time>{_date(rng)}</time> by '
            f'<a class="qa-user-link" href="../user/{ident}">{rng.choice(_AUTHORS)}</a></span></div></div>'
        )

    out, ident = [], rng.randint(200, 900) * 10
    for gold in exercises:
        ident += 10
        answers = []
        if gold.solution is not None:
            answers = [(text, rng.randint(-2, 9), False) for text in _wrong(exercises, gold, rng)]
            answers += [(gold.solution, rng.randint(1, 6), True)]
            rng.shuffle(answers)
        score = f'<span class="qa-netvote-count-data">{rng.randint(0, 5):+d}</span>'
        out.append(f'<div class="qa-q-view" id="q{ident}"><div class="qa-voting">{score} votes</div>')
        out.append(f'<div class="qa-q-view-content qa-post-content">{_paras(gold.problem)}</div>')
        out.append(f'<span class="qa-q-view-meta">asked {_date(rng)} by {rng.choice(_AUTHORS)}</span>')
        tag = rng.choice(_TAGS)
        out.append(f'<ul class="qa-q-view-tag-list"><li><a href="../tag/{tag}">{tag}</a></li></ul></div>')
        plural = "" if len(answers) == 1 else "s"
        out.append(f'<div class="qa-part-a-list"><h2>{len(answers)} Answer{plural}</h2>')
        out += [post(text, votes, ident + i, best) for i, (text, votes, best) in enumerate(answers, 1)]
        out.append("</div>")
    return "\n".join(out)


def reddit_help_threads(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 5: old-style Reddit threads with points on every comment and no accepted mark."""

    def thing(kind: str, text: str, points: int) -> str:
        """Write a submission or a comment with its points."""
        links = "".join(f'<li><a href="#">{word}</a></li>' for word in ("permalink", "report", "reply"))
        return (
            f'<div class="thing {kind}" data-score="{points}"><div class="entry unvoted">\n'
            f'<p class="tagline"><a class="author" href="#">{rng.choice(_AUTHORS)}</a> '
            f'<span class="score unvoted" title="{points}">{points} point{"" if points == 1 else "s"}</span> '
            f"<time>{rng.randint(2, 11)} years ago</time></p>\n"
            f'<div class="usertext-body"><div class="md">{_paras(text)}</div></div>\n'
            f'<ul class="flat-list buttons">{links}</ul></div></div>'
        )

    out = []
    for gold in exercises:
        post = thing("link self", gold.problem, rng.randint(1, 30))
        out.append(f'<div class="sitetable linklisting">\n{post}\n</div>')
        comments = []
        if gold.solution is not None:
            best = rng.randint(7, 60)
            comments = [(text, rng.randint(-4, best - 3)) for text in _wrong(exercises, gold, rng)]
            comments.append((gold.solution, best))
            rng.shuffle(comments)
        title = f"all {len(comments)} comments" if comments else "no comments (yet)"
        out.append('<div class="commentarea"><div class="panestack-title">')
        out.append(f'<span class="title">{title}</span> <span class="dropdown">sorted by: old</span></div>')
        out += [thing("comment", text, points) for text, points in comments]
        out.append("</div>")
    return "\n".join(out)


def openstax_answer_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 6: an OpenStax-like chapter review whose answer key comes at the end of the page by number."""
    out = ['<section class="review-exercises"><h2 data-type="document-title">Chapter Review Exercises</h2>']
    for gold in exercises:
        out.append(f'<div data-type="exercise" id="fs-{gold.number}"><div data-type="problem">')
        out.append(f'<span class="os-number">{gold.number}</span><span class="os-divider">. </span>')
        out.append(f'<div class="os-problem-container">{_paras(gold.problem)}</div></div></div>')
    out.append(f'</section>\n<div class="citation">Last revised {_date(rng)}.</div>')
    out.append('<section class="os-eoc os-solution-area"><h2>Answer Key</h2>')
    for gold in exercises:
        if gold.solution is not None:
            out.append(
                f'<div data-type="solution" id="fs-{gold.number}-solution"><a class="os-number" '
                f'href="#fs-{gold.number}">{gold.number}</a><span class="os-divider">. </span>'
            )
            out.append(f'<div class="os-solution-container">{_paras(gold.solution)}</div></div>')
    out.append("</section>")
    return "\n".join(out)


def flip_link(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 7: a teacher's page on which a link unhides the working by an inline script."""
    out = [
        "<script>function flip(k){var e=document.getElementById(k);"
        "e.style.display=e.style.display=='none'?'block':'none';}</script>"
    ]
    for gold in exercises:
        key = f"w{rng.randint(100, 999)}_{gold.number}"
        out.append(f'<div class="practice"><span class="pnum">({gold.number})</span>')
        out.append(f'<div class="ptext">{_paras(gold.problem)}</div>')
        if gold.solution is not None:
            call = f"flip('{key}');return false;"
            out.append(f'<p><a class="flip" href="#" onclick="{call}">Check your work</a></p>')
            out.append(f'<div id="{key}" class="work" style="display:none">{_spread(gold.solution)}</div>')
        out.append(f'<div class="ptools">Topic: {rng.choice(_TAGS)} | <a href="#">Print</a></div></div>')
    return "\n".join(out)


def interview_qa(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 8: a question bank that writes "Q4)" and "Ans:" as plain text within one paragraph."""
    out = ['<div class="entry-content">']
    for i, gold in enumerate(exercises):
        key = "" if gold.solution is None else f"<br>\nAns: {_inline(gold.solution)}"
        out.append(f"<p>Q{gold.number}) {_inline(gold.problem)}{key}</p>")
        if i % 3 == 1:
            out.append('<div class="sharedaddy"><a href="?s=fb">Facebook</a> <a href="?s=x">X</a></div>')
    out.append(f'<footer class="entry-meta">Posted on {_date(rng)} by {rng.choice(_AUTHORS)}</footer></div>')
    return "\n".join(out)


def nested_list(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 9: a lecturer's numbered problem sheet with the answer as a nested bullet."""
    out = [f'<p class="sheet-info">Sheet {rng.randint(1, 12)}, issued {_date(rng)}</p>\n<ol class="sheet">']
    for gold in exercises:
        out.append(f'<li value="{gold.number}" id="p{gold.number}">{_paras(gold.problem)}')
        if gold.solution is not None:
            out.append(f"<ul>\n<li><em>Answer:</em> {_broken(gold.solution)}</li>\n</ul>")
        out.append("</li>")
    out.append("</ol>")
    return "\n".join(out)


def practice_run_in(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 10: a tuition company's article with bold run-in labels for question and explanation."""
    out = []
    for i, gold in enumerate(exercises):
        out.append(f"<p><strong>Practice Question {gold.number}:</strong> {_inline(gold.problem)}</p>")
        if gold.solution is not None:
            out.append(_spread(gold.solution).replace("<p>", "<p><strong>Explanation:</strong> ", 1))
        if i % 4 == 2:
            out.append(f'<div class="also-read">Also read: <a href="/t/">{rng.choice(_TAGS)}</a></div>')
    return "\n".join(out)


def sphinx_exercise(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 11: Jupyter Book admonitions as the sphinx-exercise extension writes them."""
    out = []
    for gold in exercises:
        ref = f"ex-{rng.choice(_TAGS)}-{gold.number}"
        out.append(
            f'<div class="exercise admonition" id="{ref}">\n<p class="admonition-title">'
            f'<span class="caption-number">Exercise {gold.number} </span></p>'
        )
        out.append(f'<section id="exercise-content">\n{_paras(gold.problem)}\n</section>\n</div>')
        if gold.solution is not None:
            link = f'<a class="reference internal" href="#{ref}">Exercise {gold.number}</a>'
            out.append(f'<div class="solution dropdown admonition" id="sol-{ref}">')
            out.append(f'<p class="admonition-title">Solution to {link}</p>')
            out.append(f'<section id="solution-content">\n{_spread(gold.solution)}\n</section>\n</div>')
    return "\n".join(out)


def aptitude_card(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Family 11: an aptitude-test portal's cards with classes, the answer part empty where none is given."""
    out = []
    for gold in exercises:
        out.append(f'<div class="apt-card"><div class="apt-top"><span class="apt-no">{gold.number}.</span>')
        out.append(f'<span class="badge">{rng.choice(_LEVELS)}</span></div>')
        out.append(f'<div class="apt-question">{_paras(gold.problem)}</div>')
        body = "" if gold.solution is None else _paras(gold.solution)
        out.append(
            '<div class="apt-answer"><div class="apt-answer-title">Answer &amp; Explanation</div>'
            f'<div class="apt-answer-text">{body}</div></div>'
        )
        out.append(
            '<div class="apt-links"><a href="#">Discuss in forum</a> <a href="#">Save</a> '
            f"<span>{rng.randint(3, 950)} views</span></div></div>"
        )
    return "\n".join(out)


LAYOUTS: dict[str, Style] = {
    style.__name__: style
    for style in (
        wiki_sections,
        blog_tasks,
        pressbooks_try_it,
        course_glossary,
        mark_scheme_table,
        q2a_best_answer,
        reddit_help_threads,
        openstax_answer_key,
        flip_link,
        interview_qa,
        nested_list,
        practice_run_in,
        sphinx_exercise,
        aptitude_card,
    )
}
