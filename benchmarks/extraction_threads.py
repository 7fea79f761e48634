"""Reads pages of forum threads made of random combinations: boxes, titles, bylines, votes, acceptance, drawn apart.

As in extraction_combinations.py a page is a combination that nobody chose for the reader's sake. The solution is the
accepted answer, else the one with most votes; others stand beside it. A page fails below recall 0.85 or precision 0.95.
Combinations in which nothing tells a question from an answer, or one answer from another, are drawn again.

Command: python -m benchmarks.extraction_threads --data ../shared/data [--pages 600 --seed 0 --set first --show 0]
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.extraction import extracted, pairs, require_pages, score
from benchmarks.extraction_combinations import LEAST_RECALL, gold_pages, tell_worst
from benchmarks.extraction_styles import Gold, Style, inline, paragraphs, render, wrong
from benchmarks.extraction_thread_variations import ACCEPTED_BOXES, FRAMES, SAME, SECOND, SECOND_ACCEPTED

LEAST_PRECISION = 0.95
SHOWN_PAIRS = 3
NAMES = (
    "tom_k",
    "Lena B.",
    "mathfan92",
    "Prof. Oak",
    "j.doe",
    "ana",
    "quietfern",
    "R2",
    "Ms. Ito",
    "the_real_sam",
)
SHARE_OF_QUOTES = 0.4
Choices = Mapping[str, Sequence[str]]

FIRST: Choices = {
    "thread": (
        "<div class='thread'>|</div>",
        "<section class='topic' id='t{n}'>|</section>",
        "<article>|</article>",
        "<div class='discussion-thread'>|</div>",
        "|",
        "<div class='question-page'>|</div>",
        "<div id='thread-{n}' class='box'>|</div>",
        "<li class='conversation'>|</li>",
        "<div>|</div>",
        "|<hr>",
        "<div itemscope itemtype='https://schema.org/QAPage'>|</div>",
        "<section class='qa-block'><div>|</div></section>",
    ),
    "title": (
        "",
        "<h2>Question about exercise {n}</h2>",
        "<h3><a href='/t/{n}'>Homework help #{n}</a></h3>",
        "<h2 class='topic-title'>Need help with this one</h2>",
        "<h2>Problem {n}</h2>",
        "<h3>How do I do this?</h3>",
        "<div class='thread-title'><a href='/t/{n}'>Stuck on number {n}</a></div>",
        "<h4>Re: sheet {n} [solved]</h4>",
    ),
    "question": (
        "<div class='question'>|</div>",
        "<div class='post first-post'>|</div>",
        "<div class='post op'>|</div>",
        "<div class='message'>|</div>",
        "<div class='opening-post'>|</div>",
        "<div class='q-body'>|</div>",
        "<div class='post-question'>|</div>",
        SAME,
        SAME,
        "|",
        "<div class='original'>|</div>",
        "<section class='prompt-box'>|</section>",
        "<div class='entry' id='q{n}'>|</div>",
    ),
    "body": (
        "<div class='content'>|</div>",
        "<div class='post-body'>|</div>",
        "<div class='message-body'>|</div>",
        "<div class='text'>|</div>",
        "|",
        "<div class='body-copy'>|</div>",
        "<div><div class='md'>|</div></div>",
        "<div itemprop='text'>|</div>",
    ),
    "count": (
        "",
        "<h3>{k} Answers</h3>",
        "<h4>{k} replies</h4>",
        "<div class='answers-header'><h2>{k} answers</h2></div>",
        "<h3>Answers</h3>",
        "<h3>Replies ({k})</h3>",
        "<p>{k} replies</p>",
        "<h3>Responses</h3>",
        "<div class='bar'><span>{k} Answers</span> <a href='?s=v'>Votes</a> <a href='?s=o'>Oldest</a></div>",
    ),
    "list": (
        "|",
        "<div class='answers'>|</div>",
        "<ul class='replies'>|</ul>",
        "<ol class='posts'>|</ol>",
        "<div class='responses'>|</div>",
        "<div id='thread-{n}-list'>|</div>",
        "<div><div>|</div></div>",
    ),
    "answer": (
        "<div class='answer'>|</div>",
        "<div class='reply'>|</div>",
        "<div class='post'>|</div>",
        "<div class='post reply'>|</div>",
        "<div class='message'>|</div>",
        "<div class='response'>|</div>",
        "<div class='answer-card'>|</div>",
        "<div class='post-answer'>|</div>",
        "<li class='item'>|</li>",
        "<div class='card mb-2'>|</div>",
        "<article class='entry'>|</article>",
        "<div class='row-{u}'>|</div>",
    ),
    "byline": (
        "<div class='author'>{u}</div>",
        "<p class='byline'>Posted by {u} on March {d}, 2021</p>",
        "<div class='meta'>{u} wrote on 2021-03-{d:02}:</div>",
        "",
        "<div class='user-info'><a href='/u'>{u}</a> <span class='rep'>1,2{d:02}</span></div>",
        "<p><b>{u}</b> · {d} days ago</p>",
        "<div class='post-head'>{u} answered {d} months ago</div>",
        "<h4 class='name'>{u}</h4>",
        "<div class='who'><img src='/a/{d}.png' alt='{u}'> <span>{u}</span></div>",
        "<div class='head'><span>{u}</span> <time>{d} May 2020</time> <a href='#p{d}'>#{d}</a></div>",
    ),
    "votes": (
        "<div class='votes'>{v}</div>",
        "<span class='score'>{v} points</span>",
        "<p>{v} upvotes</p>",
        "<div class='vote-count' data-score='{v}'>{v}</div>",
        "<div class='post-foot'><button>▲</button> {v} votes</div>",
        "<p class='likes'>{v} likes</p>",
        "<p>Score: {v}</p>",
        "<p>👍 {v}</p>",
        "",
        "<div class='voting'><a href='#'>▲</a><span>{v}</span><a href='#'>▼</a></div>",
        "<div class='rating'>+{v}</div>",
    ),
    "votes at": ("before", "after", "after"),
    "votes of questions": ("no", "no", "yes"),
    "accepted": ("none", "none", "class", "badge", "check", "text", "itemprop", "foot"),
    "actions": (
        "",
        "<div class='actions'><a href='#'>Reply</a> <a href='#'>Share</a> <a href='#'>Report</a></div>",
        "<p><a href='#'>Quote</a></p>",
        "<div class='foot'><a href='#'>Like</a> · <a href='#'>Reply</a></div>",
    ),
    "remarks": ("", "", "", "<ul class='comments'><li>thanks, this helped a lot</li></ul>"),
    "quoted": ("no", "no", "no", "<blockquote><p>{u} wrote:</p><p>{q}</p></blockquote>"),
    "unanswered": ("", "", "<p>No answers yet.</p>"),
    "threads": ("several", "several", "several", "one"),
}
ACCEPTED = {
    "badge": "<span class='badge'>✓ Accepted answer</span>",
    "check": "<div class='accepted-mark' title='accepted'>✔</div>",
    "text": "<p>Best answer</p>",
    "foot": "<p>Marked as best answer by the author</p>",
    **SECOND_ACCEPTED,
}
"""Kind of acceptance -> the mark inside the post; `foot` and `told` stand at its end."""
SETS = {"first": FIRST, "second": SECOND}


def drawn_from(choices: Choices, rng: random.Random) -> dict[str, str]:
    """A combination in which something tells questions from answers, and the best answer from the others."""
    while True:
        drawn = {name: rng.choice(kinds) for name, kinds in choices.items()}
        if drawn.get("frame"):
            drawn |= {"list": "|", "count": "", "unanswered": ""}
            drawn["thread"], drawn["question"], drawn["answer"] = FRAMES[drawn["frame"]]
        drawn["question"] = drawn["answer"] if drawn["question"] == SAME else drawn["question"]
        is_told = any(drawn[name].strip("|") for name in ("thread", "title", "count"))
        is_told = is_told or drawn["question"] not in (drawn["answer"], "|")
        is_told = is_told or bool(
            drawn["votes"] and drawn["votes of questions"] == "no" and drawn["question"] != "|"
        )
        is_told = is_told and not (drawn.get("frame") and drawn["accepted"] in ACCEPTED_BOXES)
        is_list = drawn["threads"] == "one" and drawn["question"] == drawn["answer"] and not drawn["count"]
        is_told = is_told and not (
            is_list and drawn["accepted"] == "none" and drawn["votes of questions"] == "yes"
        )
        if is_told and (drawn["votes"] or drawn["accepted"] != "none"):
            return drawn


def style_of(drawn: Mapping[str, str], others: Sequence[Gold]) -> Style:
    """The style of one combination; wrong answers are `others`' solutions."""

    def style(exercises: Sequence[Gold], rng: random.Random) -> str:
        return "\n".join(_thread(drawn, one, others, rng) for one in exercises)

    return style


def _thread(drawn: Mapping[str, str], one: Gold, others: Sequence[Gold], rng: random.Random) -> str:
    votes = drawn["votes"].format(v=rng.randint(0, 9)) if drawn["votes of questions"] == "yes" else ""
    question = _post(drawn, "question", one.problem, votes, "", rng, one)
    answers = _answers(drawn, one, others, rng) if one.solution else []
    is_counted = answers or "{k}" in drawn["count"]
    title = drawn["title"].format(n=one.number)
    after = drawn.get("after", "").format(k=len(answers))
    if drawn.get("nesting") == "nested" and not drawn["frame"]:
        answers = [_nested(answers)] if answers else []
    count = drawn["count"].format(k=len(answers)) if is_counted else ""
    listed = _around(drawn["list"], "\n".join(answers), one) if answers else drawn["unanswered"]
    inside = f"{question}\n{count}\n{listed}"
    if drawn.get("frame"):
        return f"{title}\n{_around(drawn['thread'], inside, one)}\n{after}"
    return _around(drawn["thread"], f"{title}\n{inside}\n{after}", one)


def _nested(answers: Sequence[str]) -> str:
    """Each answer as a reply to the one before, in its box."""
    nested = ""
    for answer in reversed(answers):
        place = answer.rindex("</")
        nested = f"{answer[:place]}<div class='children'>{nested}</div>{answer[place:]}" if nested else answer
    return nested


def _answers(drawn: Mapping[str, str], one: Gold, others: Sequence[Gold], rng: random.Random) -> list[str]:
    """The answer that counts and up to two others, which have more votes only where another mark tells."""
    top, is_by_votes = rng.randint(8, 30), drawn["accepted"] == "none"
    texts = [(one.solution or "", top, True)]
    for _ in range(rng.randint(0, 2)):
        texts.append((wrong(others, one, rng), rng.randint(0, top - 2 if is_by_votes else top + 9), False))
    rng.shuffle(texts)
    return [
        _post(
            drawn,
            "answer",
            text,
            drawn["votes"].format(v=votes),
            drawn["accepted"] if is_best else "",
            rng,
            one,
        )
        for text, votes, is_best in texts
    ]


def _post(
    drawn: Mapping[str, str], kind: str, text: str, votes: str, accepted: str, rng: random.Random, one: Gold
) -> str:
    byline = drawn["byline"].format(u=rng.choice(NAMES), d=rng.randint(1, 28))
    mark = ACCEPTED.get(accepted, "")
    head, foot = (votes, "") if drawn["votes at"] == "before" else ("", votes)
    head, foot = (head, foot + mark) if accepted in ("foot", "told") else (head + mark, foot)
    quote = drawn["quoted"] if kind == "answer" and rng.random() < SHARE_OF_QUOTES else "no"
    quoted = "" if quote == "no" else quote.format(u=rng.choice(NAMES), q=inline(one.problem))
    remarks = drawn["remarks"] if kind == "answer" and rng.random() < SHARE_OF_QUOTES else ""
    content = (
        head
        + byline
        + _around(drawn["body"], quoted + paragraphs(text), one)
        + foot
        + remarks
        + drawn["actions"]
    )
    return _around(_marked(drawn[kind], accepted).replace("{u}", str(rng.randint(100, 999))), content, one)


def _marked(box: str, accepted: str) -> str:
    """The box of an accepted answer."""
    if accepted == "class":
        return box.replace("'>|", " accepted'>|")
    if accepted in ACCEPTED_BOXES:
        attribute = ACCEPTED_BOXES[accepted]
        if attribute.startswith(" class") and "'>|" in box:
            return box.replace("'>|", " is-solution'>|")
        return box.replace(">|", f"{attribute}>|")
    return box.replace(">|", " itemprop='acceptedAnswer'>|") if accepted == "itemprop" else box


def _around(box: str, content: str, one: Gold) -> str:
    before, after = box.format(n=one.number).split("|")
    return before + content + after


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with pages/*.gold.jsonl.gz")
    parser.add_argument("--pages", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", choices=[*SETS], default="first", help="what is drawn from")
    parser.add_argument("--show", type=int, default=0, help="failing pages whose combination is shown")
    arguments = parser.parse_args()
    require_pages(parser, arguments.data)
    rng = random.Random(arguments.seed)
    pages = gold_pages(arguments.data)
    seen: dict[tuple[str, str], list[bool]] = defaultdict(list)
    failed = 0
    for index in range(arguments.pages):
        drawn = drawn_from(SETS[arguments.set], rng)
        name, gold = pages[index % len(pages)]
        others = [Gold(row["number"], row["problem"], row["solution"]) for row in gold]
        if drawn["threads"] == "one":
            gold = [rng.choice([row for row in gold if row["solution"]])]
        exercises = [Gold(row["number"], row["problem"], row["solution"]) for row in gold]
        found = extracted(name, render(style_of(drawn, others), exercises, f"{name} {index}"), "html")
        recall, precision, _ = score(pairs(found), pairs(gold))
        has_failed = recall < LEAST_RECALL or precision < LEAST_PRECISION
        failed += has_failed
        for choice in drawn.items():
            seen[choice].append(has_failed)
        if has_failed and failed <= arguments.show:
            told = {kind: choice for kind, choice in drawn.items() if choice not in ("", "no", "|")}
            print(f"{index} {name}: recall {recall:.2f} precision {precision:.2f} {told}")
            for row in [row for row in found if row["solution"]][:SHOWN_PAIRS]:
                print(f"    P {(row['problem'] or '')[:130]!r}\n    S {(row['solution'] or '')[:110]!r}")
    tell_worst(failed, arguments, seen)


if __name__ == "__main__":
    main()
