"""`retrace phrases`: phrases of a list in the sentences of texts, against every pair by hand."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.commands.data import find_phrases

KNOWN = ["Let me verify that result.", "Hmm, does that work?", "Wait, actually..."]
TEXTS = [
    "The sum is 4. Let me verify that result now. Yes.",
    "Let me verify: that is the result.\nhmm... does That Work? Then let me verify that result!",
    "Wait, \x1bactually...",
    "Wait, actually, I should have let somebody else verify all that, and so on and so forth.",
    "",
]


def runs(text):
    """Returns every run of three words, or the whole of a shorter text."""
    words = re.sub(r"\W+", " ", text.lower()).split()
    return {" ".join(words[at : at + 3]) for at in range(max(1, len(words) - 2))}


@pytest.mark.parametrize("similarity", [0.3, 0.5, 0.9])
def test_a_sentence_holds_a_phrase_if_their_runs_of_words_are_alike(similarity):
    expected = {phrase: {} for phrase in KNOWN}
    for number, text in enumerate(TEXTS):
        for sentence in re.split(r"(?<=[.!?])\s+(?![a-z])|\n+", text):
            for phrase in KNOWN:
                one, other = runs(sentence), runs(phrase)
                if len(one & other) / len(one | other) >= similarity:
                    expected[phrase].setdefault(number, sentence)
    assert find_phrases(TEXTS, KNOWN, similarity) == expected
    assert len(expected[KNOWN[0]]) == (0 if similarity == 0.9 else 2) and list(expected[KNOWN[2]]) == [2]


def test_the_command_counts_texts_and_names_a_wrong_field(tmp_path):
    file, queries = tmp_path / "pages.jsonl", tmp_path / "list.yaml"
    file.write_text("".join(json.dumps({"text": text, "url": number}) + "\n" for number, text in enumerate(TEXTS)))
    queries.write_text(json.dumps({"queries": KNOWN}))
    flags = ["phrases", str(file), "--queries", str(queries)]
    ended = CliRunner().invoke(app, flags)
    assert ended.exit_code == 0, ended.output
    assert [line.split("  ")[0] for line in ended.stdout.splitlines()[1:-1]] == [KNOWN[0], KNOWN[1], KNOWN[2]]
    assert "\x1b" not in ended.stdout
    assert "3 of 5 texts hold one of 3 phrases (60.00%); 0 rows without such a text" in ended.stdout
    ended = CliRunner().invoke(app, [*flags, "--field", "url"])
    assert ended.exit_code == 2 and "no text in the field 'url': name another with --field" in ended.output
    queries.write_text("queries: one")
    assert "has no list `queries` of texts" in CliRunner().invoke(app, flags).output
