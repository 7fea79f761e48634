"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 7."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_ATOM = re.compile(
    r"!\[(?P<alt>[^\]]*)\]\((?P<src>[^)\s]+)\)"
    r"|\$\$.+?\$\$|\\\(.+?\\\)|\\\[.+?\\\]|\\begin\{(?P<env>[a-zA-Z]+\*?)\}.+?\\end\{(?P=env)\}"
    r"|\\.|\$(?:\\.|[^$\\\n]|\n(?!\s*\n))+\$",
    re.DOTALL,
)
_IMG = '<img src="{src}" alt="{alt}">'
_NAMES = ("mapleleaf", "Jo_K", "tanvi22", "oldprof", "quadrat", "Sven_H", "nightowl", "pi_eater", "rosei")
_POOR = (
    "I would just try a few values and see which one fits. That usually works for me.",
    "Isn't something missing from the statement? I keep getting a contradiction.",
    "My calculator gives a different value every time, so I think any answer is fine.",
)


def _paragraphs(text: str, br: str, img: str) -> list[str]:
    """Returns the paragraphs of a text in HTML, breaks between lines; formulas and images stay whole."""
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        if match["src"] is None:
            kept.append(html.escape(match[0], quote=False))
        else:
            kept.append(img.format(src=html.escape(match["src"]), alt=html.escape(match["alt"])))
        return f"\0{len(kept) - 1}\0"

    marked = html.escape(_ATOM.sub(keep, text), quote=False).strip()
    blocks = re.split(r"\n[ \t]*\n\s*", marked)
    broken = (f"{br}\n".join(line.strip() for line in block.split("\n")) for block in blocks)
    return [re.sub("\0(\\d+)\0", lambda match: kept[int(match[1])], block) for block in broken]


def _flow(text: str, tag: str = "<p>", lead: str = "", br: str = "<br>", img: str = _IMG) -> str:
    """Returns a text as paragraphs opened by tag, with lead at the start of the first."""
    first, *rest = _paragraphs(text, br, img)
    return "".join(f"{tag}{part}</p>\n" for part in (lead + first, *rest))


def _breaks(text: str, br: str = "<br>", img: str = _IMG) -> str:
    """Returns a text with double breaks between its paragraphs and no elements around them."""
    return f"{br}{br}\n".join(_paragraphs(text, br, img))


def _roman(number: int) -> str:
    """Returns a number in Roman numerals."""
    hundreds, tens, ones = number // 100, number // 10 % 10, number % 10
    low = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
    return "C" * hundreds + low[tens].translate(str.maketrans("IVX", "XLC")) + low[ones]


def _wrong(exercises: Sequence[Gold], gold: Gold, rng: random.Random) -> list[str]:
    """Returns up to three wrong answers: remarks, or solutions of other exercises."""
    others = [other.solution for other in exercises if other.solution and other.solution != gold.solution]
    pool = [*rng.sample(_POOR, 2), *rng.sample(others, min(2, len(others)))]
    return rng.sample(pool, rng.choice((0, 1, 2, 2, 3)) if len(pool) > 2 else 1)


def heading_repo_wiki(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows a study group's wiki on a code host: h2 and h3 in heading boxes with permalinks."""
    chapter, word = rng.randint(1, 9), rng.choice(("Exercise", "Problem"))

    def head(level: int, title: str, slug: str) -> str:
        return f"""<div class="markdown-heading"><h{level} class="heading-element">{title}</h{level}>\
<a id="user-content-{slug}" class="anchor" aria-label="Permalink: {title}" href="#{slug}">\
<svg class="octicon octicon-link" viewBox="0 0 16 16" width="16" height="16"></svg></a></div>\n"""

    out = f"""<div id="wiki-body" class="gollum-markdown-content"><div class="markdown-body">
<p>Our write-ups for chapter {chapter}. Do <strong>not</strong> force-push to this wiki, please.</p>\n"""
    for gold in exercises:
        state = "help wanted" if gold.solution is None else "reviewed"
        out += head(2, f"{word} {chapter}.{gold.number}", f"{word.lower()}-{chapter}{gold.number}")
        out += f"<ul><li>added by <code>@{rng.choice(_NAMES)}</code></li><li>status: {state}</li></ul>\n"
        out += _flow(gold.problem, img='<a target="_blank" href="{src}"><img src="{src}" alt="{alt}"></a>')
        if gold.solution is not None:
            out += head(3, "Solution", f"solution-{gold.number}") + _flow(gold.solution)
        out += '<p><sub><a href="#wiki-body">back to top</a></sub></p>\n<hr>\n'
    return out + "</div></div>"


def heading_ebook_converter(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows a book put on the web by an e-book converter: numbered classes, file positions, page marks."""
    page, br = rng.randint(40, 300), '<br class="calibre2"/>'
    answer = rng.choice(("Worked answer", "Discussion and answer", "Solution"))
    out = f'<div class="calibre1" id="calibre_link-{page}"><div class="mbp_pagebreak"></div>\n'
    for count, gold in enumerate(exercises):
        if count % 4 == 0:
            out += f"""<h2 class="calibre7"><span class="calibre8">Set {_roman(count // 4 + 1)}</span></h2>
<p class="epigraph"><i class="calibre3">Take a sheet of paper and a quiet hour.</i></p>\n"""
        out += f"""<a id="page_{page + count}" class="calibre4"></a>
<h3 class="calibre9" id="filepos{page}{count}"><span class="bold">DRILL {gold.number}</span></h3>\n"""
        out += _flow(gold.problem, '<p class="noindent">', br=br)
        if gold.solution is not None:
            out += f'<h4 class="calibre10"><span class="italic">{answer}</span></h4>\n'
            out += _flow(gold.solution, '<p class="indent1">', br=br)
        out += '<p class="ornament">* * *</p>\n'
    return out + "</div>"


def dl_museum_trail(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows a museum's learning page: a card for each object, its definition list in rows, no numbers."""
    answer = rng.choice(("Answer explained", "How to solve it"))
    out = '<section class="c-trail"><p class="c-trail__intro">Download the trail (PDF, 1.2 MB).</p>\n'
    for gold in exercises:
        thing = f"{rng.randint(1890, 2015)}.{rng.randint(1, 400)}"
        tools = rng.choice(("Pencil and paper", "A ruler and squared paper", "Nothing but your head"))
        rows = [("You will need", tools), ("Challenge", _flow(gold.problem))]
        rows += [] if gold.solution is None else [(answer, _flow(gold.solution))]
        rows += [("Time", f"{rng.randrange(5, 35, 5)} minutes")]
        out += f"""<article class="c-card" data-object-id="{thing}"><p class="c-card__eyebrow">Gallery \
{rng.randint(1, 9)}: {rng.choice(("Clocks", "Navigation", "Looms"))} &middot; Object {thing}</p><dl>\n"""
        for name, body in rows:
            out += f'<div class="c-card__row"><dt>{name}</dt><dd>{body}</dd></div>\n'
        out += "</dl></article>\n"
    return out + "</section>"


def dl_lecturer_homepage(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows a lecturer's page of the nineties: one DL in capitals, no end tags, two DD an exercise."""
    label, img = rng.choice(("Solution.", "Model solution.")), '<IMG SRC="{src}" ALT="{alt}" BORDER=0>'
    out = f"""<CENTER><FONT SIZE=+2>Exercise sheet {rng.randint(1, 6)}</FONT></CENTER>
<P>Hand in on paper, <B>not</B> by e-mail. Office hours: Tue 2-3pm, room 1.14.</P><HR NOSHADE><DL>\n"""
    for gold in exercises:
        out += f"""<DT><A NAME="ex{gold.number}"><B>({gold.number})</B></A> \
<FONT SIZE=-1>[{rng.randint(2, 10)} credits]</FONT>
<DD>{_breaks(gold.problem, "<BR>", img)}\n"""
        if gold.solution is not None:
            out += f"<DD><I>{label}</I>\n{_breaks(gold.solution, '<BR>', img)}\n"
    return out + "</DL>\n<HR NOSHADE>\n<ADDRESS>Last changed: 3 Nov 1997</ADDRESS>"


def table_exam_archive(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows a ministry's archive of released exam items: a table of row headers for each item."""
    year, word = rng.randint(2004, 2023), rng.choice(("Question", "Task"))
    solved = rng.choice(("Worked solution", "Official solution"))
    out = f'<p class="gov-body">Items released under the open licence after the {year} session.</p>\n'
    for gold in exercises:
        rows = [("Session", f"{rng.choice(('May', 'June', 'November'))} {year}, paper {rng.randint(1, 3)}")]
        rows += [("Marks", str(rng.randint(1, 9))), (word, _flow(gold.problem))]
        rows += [] if gold.solution is None else [(solved, _flow(gold.solution))]
        rows += [("Mean mark (national)", f"{rng.randint(20, 90)}%")]
        out += f'<table class="gov-table"><caption>Item Q{gold.number}</caption><tbody>\n'
        for name, body in rows:
            out += f'<tr><th scope="row" class="gov-table__header">{name}</th><td>{body}</td></tr>\n'
        out += "</tbody></table>\n"
    return out


def table_hobby_fonts(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows a hobbyist's teaser page: one layout table, font tags, coloured bars, spacer rows."""
    word, colour = rng.choice(("Teaser", "Brain Twister", "Problem")), rng.choice(("#003399", "#660066"))
    face = '<font face="Verdana,Arial" size="2">'
    out = '<center><table border="0" cellpadding="6" cellspacing="0" width="620">\n'
    for gold in exercises:
        who = f"Sent in by {rng.choice(('Margaret T.', 'Dieter', 'a reader in Leeds', 'Class 9b'))}"
        out += f"""<tr bgcolor="{colour}"><td colspan="2"><font face="Arial" color="#ffffff" size="3">\
<b>{word} #{gold.number}</b></font></td></tr>
<tr><td colspan="2" align="right"><font size="1" color="#808080">{who}</font></td></tr>
<tr valign="top"><td width="90">&nbsp;</td><td>{face}{_breaks(gold.problem)}</font></td></tr>\n"""
        if gold.solution is not None:
            out += f"""<tr valign="top" bgcolor="#ffffe0"><td width="90" align="right">\
<font color="#cc0000"><b>Answer:</b></font></td><td>{face}{_breaks(gold.solution)}</font></td></tr>\n"""
        out += '<tr><td colspan="2" height="12"><a href="#top"><font size="1">top</font></a></td></tr>\n'
    return out + "</table></center>"


def forum_bulletin_board(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows an old bulletin board: posts as table rows with member cells; the asker marks a best answer."""
    out = '<div class="pagenav">Page 1 of 1</div>\n'
    for gold in exercises:
        people = rng.sample(_NAMES, 5)
        posts = [(text, False) for text in _wrong(exercises, gold, rng)]
        if gold.solution is None:
            posts = rng.choice(([], [("Bump. Same here, I am stuck on this one too.", False)]))
        else:
            posts.insert(rng.randint(0, len(posts)), (gold.solution, True))
        out += f"""<table class="tborder" width="100%" cellspacing="1" cellpadding="6">
<tr><td class="tcat" colspan="2"><strong>Help with number {gold.number} please</strong> \
<small>[{"Open" if gold.solution is None else "Solved"}] Replies: {len(posts)}</small></td></tr>\n"""
        for place, (text, best) in enumerate([(gold.problem, False), *posts]):
            mark = "&#10004; Best answer, chosen by the thread starter" if best else ""
            role = "Thread starter" if place == 0 else rng.choice(("Member", "Senior Member"))
            out += f"""<tr valign="top"><td class="alt2" width="150"><b class="user">{people[place]}</b>\
<br><span class="smallfont">{role}<br>Posts: {rng.randint(1, 4000)}</span></td>
<td class="alt1"><div class="smallfont">#{place + 1} &nbsp; {10 + place}-10-2006, {rng.randint(1, 9)}pm</div>
{mark and f'<div class="bestanswer">{mark}</div>'}
<div class="post_message">{_breaks(text, "<br />")}</div>
<div class="smallfont"><a href="#q">Quote</a> | <a href="#r">Report</a></div></td></tr>\n"""
        out += "</table>\n"
    return out


def forum_points_elements(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows a community built of custom elements: the comment with the most points is right."""
    out = '<feed-view layout="compact"><feed-sort>Sorted by: New</feed-sort>\n'
    for gold in exercises:
        people = rng.sample(_NAMES, 5)
        comments: list[tuple[str, int, str]] = []
        if gold.solution is not None:
            comments = [(text, rng.randint(-8, 9), "") for text in _wrong(exercises, gold, rng)]
            thanks = f"""<thread-comment depth="1"><div slot="meta">u/{people[0]} &bull; 2 points</div>
<div slot="comment" class="md"><p>Thank you, now I see it!</p></div></thread-comment>\n"""
            right = (gold.solution, rng.randint(25, 400), rng.choice(("", thanks)))
            comments.insert(rng.randint(0, len(comments)), right)
        out += f"""<thread-post post-id="t3_{rng.getrandbits(28):x}" comment-count="{len(comments)}">
<post-credit>Posted by u/{people[0]} {rng.randint(2, 11)} months ago</post-credit>
<h2 slot="title">{rng.choice(("Stuck on this exercise", "Homework question"))}</h2>
<div slot="text-body" class="md">{_flow(gold.problem)}</div>
<post-bar><span>{rng.randint(1, 20)} upvotes</span> <span>Share</span> <span>Save</span></post-bar>
<comment-tree>\n"""
        for person, (text, points, child) in zip(people[1:], comments, strict=False):
            out += f"""<thread-comment depth="0" score="{points}">
<div slot="meta">u/{person} &bull; {points} points</div>
<div slot="comment" class="md">{_flow(text)}</div>
<div slot="actions"><button>Reply</button> <button>Award</button></div>{child}</thread-comment>\n"""
        out += f"{'' if comments else '<p>No comments yet</p>'}</comment-tree></thread-post>\n"
    return out + "</feed-view>"


def end_published_worksheet(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows a worksheet published from an online word processor; the answer key is its last page."""
    out = """<div class="doc-content">
<p class="c6"><span class="c1">Name: ____________________ &nbsp; Date: ___________</span></p>
<h1 class="c8"><span class="c7">Practice questions</span></h1>
<p class="c2"><span class="c5">Show all your working. Calculators are allowed.</span></p>\n"""
    leads = [f'<span class="c4">{gold.number})</span><span class="c1">&nbsp; </span>' for gold in exercises]
    for gold, lead in zip(exercises, leads, strict=True):
        out += _flow(gold.problem, '<p class="c2">', lead)
        out += f'<p class="c9"><span class="c5">[{rng.randint(2, 6)} marks]</span></p><p class="c10"></p>\n'
    out += f"""<hr style="page-break-before:always;display:none;">
<h1 class="c8"><span class="c7">{rng.choice(("ANSWER KEY", "Worked answers"))}</span></h1>\n"""
    for gold, lead in zip(exercises, leads, strict=True):
        out += "" if gold.solution is None else _flow(gold.solution, '<p class="c2">', lead)
    return out + '<p class="c6"><span class="c5">&copy; Hillview School</span></p></div>'


def end_circle_blog(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows a maths circle's blog post: puzzles in Roman numerals, solutions under a heading below."""
    word = rng.choice(("Puzzle", "Problem"))
    out = f"""<div class="entry-content wp-block-post-content">
<p>Here is issue {rng.randint(10, 99)} of our monthly round. Solutions are at the bottom!</p>\n"""
    for gold in exercises:
        out += f'<div class="wp-block-group" id="puzzle-{gold.number}">\n'
        out += _flow(gold.problem, lead=f"<strong>{word} {_roman(gold.number)}.</strong> ")
        if gold.solution is not None:
            out += f'<p class="has-small-font"><a href="#sol-{gold.number}">Jump to the solution</a></p>\n'
        out += '</div>\n<hr class="wp-block-separator is-style-dots"/>\n'
    out += """<div class="wp-block-jetpack-subscriptions"><p>Never miss a round. Type your email&hellip;</p>
<button type="submit">Subscribe</button></div>
<h2 class="wp-block-heading" id="solutions">Solutions</h2>\n"""
    for gold in exercises:
        if gold.solution is not None:
            out += f"""<h4 class="wp-block-heading" id="sol-{gold.number}">Solution to {word} \
{_roman(gold.number)} <a href="#puzzle-{gold.number}" aria-label="Back">&#8617;</a></h4>\n"""
            out += _flow(gold.solution)
    return out + '<div class="sharedaddy"><h3>Share this:</h3><p>Email</p></div></div>'


def toggle_testprep_cards(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows a test-prep company's cards: minified classes, a button opens the explanation."""
    card, chip, body, button, panel = (f"css-{rng.getrandbits(28):x}" for _ in range(5))
    total = max((gold.number for gold in exercises), default=0)
    out = f'<div class="css-{rng.getrandbits(28):x}" data-testid="practice-set">\n'
    for gold in exercises:
        skill, level = rng.choice(("Algebra", "Reasoning", "Data")), rng.choice(("Easy", "Medium", "Hard"))
        out += f"""<div class="{card}" data-testid="question-card"><div class="{chip}">\
<span>Question {gold.number} of {total}</span><span>{skill}</span><span>{level}</span></div>
<div class="{body}">{_flow(gold.problem)}</div>\n"""
        if gold.solution is not None:
            name = f"r{rng.getrandbits(12):x}-{gold.number}"
            out += f"""<button type="button" class="{button}" aria-expanded="false" aria-controls="{name}">\
Show explanation</button>
<div id="{name}" class="{panel}" role="region" hidden="">{_flow(gold.solution)}</div>\n"""
        out += f'<div class="{chip}"><span>{rng.randint(18, 92)}% of users got it right</span></div></div>\n'
    return out + "</div>"


def toggle_olympiad_archive(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows an early olympiad archive: links that flip hidden blocks for solution and statistics."""
    out = f"""<script type="text/javascript">function flip(i){{var s=document.getElementById(i).style;\
s.display=s.display=='none'?'block':'none';}}</script>
<p align="center"><b>{rng.randint(24, 60)}th Olympiad, category B</b><br>Time allowed: 4 hours</p>\n"""
    for gold in exercises:
        lead, solution = f"<b>Problem {gold.number}.</b> ", ""
        links = f"<a href=\"javascript:flip('st{gold.number}')\">[Statistics]</a>"
        if gold.solution is not None:
            links = f"<a href=\"javascript:flip('so{gold.number}')\">[Solution]</a> {links}"
            solution = f"""<div id="so{gold.number}" class="sol" style="display:none">\
{_flow(gold.solution, br="<br />")}</div>\n"""
        out += f"""<div class="prob">{_flow(gold.problem, lead=lead, br="<br />")}<p class="links">{links}</p>
{solution}<div id="st{gold.number}" class="stat" style="display:none">Mean mark \
{rng.randint(5, 65) / 10} out of 7.</div></div>\n"""
    return out


def inline_language_school(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows a bilingual school site: Q3 and A3 labels, utility classes, word boxes."""
    out = '<div class="mx-auto max-w-3xl space-y-8 px-4">\n'
    for gold in exercises:
        ask = f'<span class="mr-2 font-bold text-sky-700">Q{gold.number}:</span> '
        tell = f'<span class="mr-2 font-bold text-emerald-700">A{gold.number}:</span> '
        english, spanish = rng.choice((("proof", "la prueba"), ("sum", "la suma"), ("corner", "la esquina")))
        out += '<div class="rounded-xl border p-6 shadow-sm">' + _flow(gold.problem, '<p class="mb-3">', ask)
        out += "" if gold.solution is None else _flow(gold.solution, '<p class="mb-3">', tell)
        out += f"""<aside class="mt-4 rounded bg-amber-50 p-3 text-sm"><span class="uppercase">Word of the \
card</span><div>{english} &ndash; <em lang="es">{spanish}</em></div></aside></div>\n"""
    return out + "</div>"


def inline_word_handout(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Shows a library's handout saved as a web page by a word processor: bold run-in labels."""
    unit, normal = rng.randint(1, 12), "<p class=MsoNormal style='margin-bottom:6.0pt;text-align:justify'>"
    told = f"<b><i><span lang=EN-GB>{rng.choice(('Worked answer.', 'Explanation.'))}</span></i></b> "
    out = f"""<div class=WordSection1>
{normal}<span lang=EN-GB>Unit {unit}. Evening class, Central Library, first floor.<o:p></o:p></span></p>\n"""
    for gold in exercises:
        lead = f"<b><span lang=EN-GB style='color:#1F3864'>Practice {unit}.{gold.number}.</span></b> "
        out += _flow(gold.problem, normal, lead)
        out += "" if gold.solution is None else _flow(gold.solution, normal, told)
        out += "<p class=MsoNormal><span lang=EN-GB><o:p>&nbsp;</o:p></span></p>\n"
    return out + "</div>"


LAYOUTS: dict[str, Style] = {
    "heading_repo_wiki": heading_repo_wiki,
    "heading_ebook_converter": heading_ebook_converter,
    "dl_museum_trail": dl_museum_trail,
    "dl_lecturer_homepage": dl_lecturer_homepage,
    "table_exam_archive": table_exam_archive,
    "table_hobby_fonts": table_hobby_fonts,
    "forum_bulletin_board": forum_bulletin_board,
    "forum_points_elements": forum_points_elements,
    "end_published_worksheet": end_published_worksheet,
    "end_circle_blog": end_circle_blog,
    "toggle_testprep_cards": toggle_testprep_cards,
    "toggle_olympiad_archive": toggle_olympiad_archive,
    "inline_language_school": inline_language_school,
    "inline_word_handout": inline_word_handout,
}
