"""Further choices of extraction_threads, written when the rules had been mended on its first ones.

A frame replaces the four boxes of a thread by ones that belong together: tables, lists, boxes with roles only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SAME = "as answers"
SECOND: Mapping[str, Sequence[str]] = {
    "frame": (
        "",
        "",
        "",
        "",
        "table",
        "cells",
        "a table a post",
        "articles",
        "roles",
        "definitions",
        "items",
    ),
    "thread": (
        "<div class='panel panel-default'>|</div>",
        "<div class='topic-view' data-id='{n}'>|</div>",
        "|",
        "|<hr>",
        "<div><div class='inner'>|</div></div>",
        "<section class='cooked-wrap'>|</section>",
        "<qa-thread>|</qa-thread>",
    ),
    "title": (
        "",
        "<h2 class='q-title'>Exercise {n}: stuck</h2>",
        "<p class='subject'>Subject: sheet {n}</p>",
        "<h2><a href='#'>Please explain no. {n}</a> <span class='tag'>algebra</span></h2>",
        "<div class='topic-header'><h3>Thread {n}</h3><p>Viewed 1{n} times</p></div>",
        "<h3>Solved: how to start?</h3>",
    ),
    "question": (
        "<div class='topic-starter'>|</div>",
        "<div class='lia-message'>|</div>",
        SAME,
        SAME,
        "|",
        "<div class='card question-card'>|</div>",
        "<div class='main-post'>|</div>",
        "<div class='block'>|</div>",
    ),
    "body": (
        "<section class='prose'>|</section>",
        "<div class='postbody'>|</div>",
        "<div class='s-text' dir='auto'>|</div>",
        "<div class='wrap'><div class='inner'>|</div></div>",
        "|",
        "<div class='entry-content'>|</div>",
    ),
    "count": (
        "",
        "<div class='count'>{k} responses so far</div>",
        "<h2>Answers ({k})</h2>",
        "<h4>Expert answers</h4>",
        "<h3>{k} Replies, sorted by: <a href='#'>Votes</a> <a href='#'>Newest</a></h3>",
        "<div class='tabs'><a href='?s=a'>Active</a><a href='?s=o'>Oldest</a><a href='?s=v'>Votes</a></div>",
        "<p><b>{k} answers:</b></p>",
        "<h3>What others replied</h3>",
    ),
    "list": (
        "|",
        "<div class='a-list'>|</div>",
        "<section>|</section>",
        "<div class='wrapper'><div class='stack'>|</div></div>",
    ),
    "answer": (
        "<div class='lia-message'>|</div>",
        "<div class='card answer-card mb-3'>|</div>",
        "<div class='a-item'>|</div>",
        "<div class='block'>|</div>",
        "<section class='res'>|</section>",
        "<div class='post-container'>|</div>",
        "<div>|</div>",
        "<div id='c{u}' class='b'>|</div>",
    ),
    "byline": (
        "<div class='postprofile'><a href='/u'>{u}</a><br>Joined: Mar 2014<br>Location: Leeds</div>",
        "",
        "<p>by <a href='/u'>{u}</a> » {d} Mar 2019, 14:0{d}</p>",
        "<h5>{u} says:</h5>",
        "<div>{u}</div><div>Member</div>",
        "<header><strong>{u}</strong> <small>Level {d}</small></header>",
        "<p><em>{u}, {d} weeks ago</em></p>",
        "<div class='user'><img src='/{d}.png' alt=''><span class='nick'>{u}</span> <span>Lvl {d}</span></div>",
        "<div class='info'>Answered by {u}, {d} weeks ago</div>",
        "<div class='pc'><a href='/u'>{u}</a>, May {d}</div>",
    ),
    "votes": (
        "<p>{v} people found this helpful</p>",
        "<div class='kudos'>{v} Kudos</div>",
        "<span class='count'>+{v}</span>",
        "<div class='helpful'>Helpful ({v})</div>",
        "<button class='up'>Upvote · {v}</button>",
        "<div>Votes: {v}</div>",
        "<div class='post-rating'>Rating: {v}</div>",
        "<div><span>▲</span> <span>{v}</span></div>",
        "",
        "<div class='js-count' itemprop='upvoteCount'>{v}</div>",
        "<p class='thx'>{v} thanks</p>",
        "<div aria-label='{v} upvotes' class='v'><b>{v}</b></div>",
    ),
    "votes at": ("before", "after", "after"),
    "votes of questions": ("no", "no", "yes"),
    "accepted": ("none", "none", "aria", "tooltip", "ribbon", "data", "solution class", "verified", "told"),
    "actions": (
        "",
        "<ul class='links'><li><a href='#'>Permalink</a></li><li><a href='#'>Report abuse</a></li></ul>",
        "<p>Was this answer helpful? <a href='#'>Yes</a> <a href='#'>No</a></p>",
        "<div class='btns'><button>Share</button><button>Save</button></div>",
    ),
    "remarks": (
        "",
        "",
        "<div class='comments'><p>ana: nice!</p></div>",
        "<div class='post-comments'><span>Can you say more about this step?</span> – <a href='/u'>joe</a></div>",
        "<ul class='sub-replies'><li><b>joe</b> Thank you, that works.</li></ul>",
    ),
    "quoted": (
        "no",
        "no",
        "no",
        "<div class='quotetitle'>{u} wrote:</div><div class='quotecontent'>{q}</div>",
        "<blockquote>{q}</blockquote>",
    ),
    "unanswered": ("", "<p>Be the first to answer!</p>", "<div class='empty'>Nobody has replied yet</div>"),
    "nesting": ("flat", "flat", "flat", "nested"),
    "after": (
        "",
        "",
        "<div class='thread-foot'>Replies: {k} | Views: 210</div>",
        "<p><a href='/reply'>Write an answer</a></p>",
        "<form><textarea></textarea><button>Post</button></form>",
    ),
    "threads": ("several", "several", "several", "one"),
}
FRAMES = {
    "table": (
        "<table class='forumline'>|</table>",
        "<tr class='row1'><td>|</td></tr>",
        "<tr class='row2'><td>|</td></tr>",
    ),
    "cells": (
        "<table border='1' width='100%'>|</table>",
        *2 * ("<tr><td class='left'>Registered user<br>Posts: {u}</td><td class='right'>|</td></tr>",),
    ),
    "a table a post": (
        "<div class='t'>|</div>",
        *2 * ("<table class='tborder'><tr><td>|</td></tr></table>",),
    ),
    "articles": ("<div>|</div>", *2 * ("<article class='topic-body'>|</article>",)),
    "roles": ("<div role='article'>|</div>", "<div data-testid='q'>|</div>", "<div role='listitem'>|</div>"),
    "definitions": ("<dl>|</dl>", "<dt>|</dt>", "<dd>|</dd>"),
    "items": ("<ol class='thread'>|</ol>", *2 * ("<li>|</li>",)),
}
"""Name -> thread, question, answer; titles stand before the thread, and nothing counts the answers."""
SECOND_ACCEPTED = {
    "aria": "<span class='tick' aria-label='Accepted answer'></span>",
    "ribbon": "<div class='ribbon'>Solution</div>",
    "tooltip": "<i class='icon' title='Best answer chosen by the asker'></i>",
    "verified": "<p>✔ Verified by a teacher</p>",
    "told": "<div>This answer was accepted by the asker.</div>",
}
ACCEPTED_BOXES = {"data": " data-accepted='true'", "solution class": " class='is-solution'"}
