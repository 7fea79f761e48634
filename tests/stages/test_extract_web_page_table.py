"""A page table to candidates and drops: rows that a table from elsewhere may hold."""

import pandas

from stages.extract_web.params import ExtractWebParams
from stages.extract_web.shards import extract

PARAMS = ExtractWebParams(
    method={"kind": "rules"},
    max_answer_characters=40,
    shared_instructions="prepended",
    min_confidence=0.0,
    page_timeout_seconds=60,
    page_memory_mib=1024,
    engine={"kind": "local", "processes": 1},
)
GOOD = {
    "page_id": "a",
    "url": "u",
    "format": "html",
    "licence": "MIT",
    "content": "<h3>Exercise 1</h3><p>Compute 1+1.</p><h4>Solution</h4><p>2</p>",
}


def test_rows_without_text_are_drops_and_the_others_keep_their_place():
    rows = [
        GOOD | {"content": None},
        GOOD | {"page_id": "b"},
        GOOD | {"page_id": None},
        GOOD | {"format": None},
        GOOD | {"page_id": "c", "url": None, "licence": None},
        GOOD | {"page_id": "d", "format": "pdf"},
    ]
    candidates, funnel, metrics = extract(pandas.DataFrame(rows), PARAMS, processes=1)
    assert [row["page_id"] for row in candidates] == ["b", "c"]
    assert candidates[1]["url"] is None
    assert funnel.dropped_frame()["reason"].tolist() == ["row_malformed"] * 3 + ["format_not_read"]
    assert metrics["rows/in"] == 6 and metrics["rows/kept"] == 2


def test_a_row_of_too_little_confidence_is_kept_aside_with_its_evidence():
    toggle = "<p>Compute 1+1.</p><details><summary>Solution</summary><p>2</p></details>"
    rows = [GOOD, GOOD | {"page_id": "b", "content": toggle}]
    params = PARAMS.model_copy(update={"min_confidence": 0.8})
    candidates, funnel, metrics = extract(pandas.DataFrame(rows), params, processes=1)
    assert [(row["page_id"], row["number"], row["evidence"]) for row in candidates] == [
        ("a", "1", "words+words: Exercise 1 | Solution")
    ]
    [dropped] = funnel.dropped_frame().to_dict("records")
    assert dropped["reason"] == "low_confidence" and "none+words" in dropped["detail"]
    assert metrics["candidates/low_confidence"] == 1 and metrics["rows/kept"] == 2
