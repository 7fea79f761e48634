"""The report's data part: cards, the steps from pages to trusted problems, contamination and repeats."""

from __future__ import annotations

import json

import numpy
import pytest

from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, write_metrics
from stages.foundations.tables import CONTAMINATION, DUPLICATE, PAGE, PROBLEM, TRANSFORM, write_table
from stages.report.cards import length_bins
from tests.stages.test_report import PARAMS, Reader, make_page, params, write_params

HOSTILE = "<script>alert('x')</script>\u202e"


def problem(number, **changes):
    texts = {"problem": "What is it? " + "x" * number, "answer": "4", "solution": None if number % 2 else "It is 4."}
    return {"problem_id": f"sums/{number}", "source": "sums", "licence": "MIT", **texts, **changes}


def hit(number, rule="exact"):
    train = {"problem_id": f"sums/{number}", "source": "sums", "problem": f"Train text {number} {HOSTILE}"}
    held_out = {"benchmark_problem_id": f"b/{number}", "benchmark_problem": f"Held-out text {number}"}
    found = {"benchmark": "sums_heldout", "rule": rule, "overlap": 0.5, "benchmark_revision": "sha256 ab12"}
    return train | held_out | found


@pytest.fixture
def run(tmp_path):
    """Makes the data of a run that has not trained yet."""
    write_params(tmp_path, PARAMS)
    data = tmp_path / "data"
    rows = [problem(number) for number in range(10)] + [problem(900, licence=None, source=HOSTILE)]
    write_table(rows, data / "problems/train.parquet", PROBLEM)
    write_table(rows[:3], data / "problems/collected/sums.parquet", PROBLEM)
    write_table([], data / "problems/transforms.parquet", TRANSFORM)
    pages = [{"page_id": "p/1", "url": "u", "format": "html", "content": "<p>" * 500, "licence": "CC BY 4.0"}]
    write_table(pages, data / "web/pages.parquet", PAGE)
    write_table([hit(1), hit(2, "template"), hit(3)], data / "problems/contamination.parquet", CONTAMINATION)
    write_table([hit(7, "ngrams")], data / "web/contamination.parquet", CONTAMINATION)
    pair = {"problem_id": "a", "source": "sums", "problem": "p"}
    pair |= {"other_id": "b", "other_source": "sums", "other_problem": "q"}
    pair |= {"scope": "within_benchmark", "rule": "near_duplicates", "similarity": 0.9}
    write_table([pair] * 3, data / "problems/duplicates.parquet", DUPLICATE)
    dropped = {"dropped/exact_duplicate": 3, "dropped/multi_part": 5, "dropped/no_agreement": 7}
    counted = {
        "curate": {"rows/in": 13, "rows/kept": 10, "dropped/contaminated": 3, "contamination/pairs": 3},
        "collect_web": {"rows/in": 12, "rows/kept": 11, "dropped/too_large": 1},
        "extract_web": {"rows/in": 11, "rows/kept": 9, "dropped/no_exercise": 2, "candidates/all": 40},
        "filter_web": {"rows/in": 40, "rows/kept": 25, **dropped},
    }
    for stage, metrics in counted.items():
        write_metrics(data / f"metrics/{stage}.json", metrics)
    return tmp_path


def test_lengths_fall_into_bins_that_hold_all_of_them():
    for lengths in ([0], [5, 5, 5], [1, 10, 100_000], list(range(500)), [0, 1_000_000]):
        own = numpy.array(lengths)
        for is_logarithmic in (False, True):
            edges = length_bins(own, is_logarithmic)
            assert (numpy.diff(edges) > 0).all() and len(edges) <= 33
            outside = 1 if is_logarithmic and 0 in lengths else 0  # an empty text has no position on that axis
            assert numpy.histogram(own, edges)[0].sum() == len(own) - outside


def test_the_page_shows_cards_hits_and_the_way_from_pages(run):
    page = make_page(run)
    text = Reader(page).text
    for told in (
        "problems/collected/sums 3 rows",
        "Made by collect@sums .",
        "web/pages 1 rows",
        "CC BY 4.0 1",
        "problems/train 11 rows",
        f"MD5 {dvc_md5(run / 'data/problems/train.parquet')}",
        "problem_id string 11 source string 11 problem string 11 answer string 11 solution string 6 licence string 10",
        "Source rows sums 10 <script>alert('x')</script>⟨U+202E⟩ 1 Licence rows MIT 10 none given 1",
        "longest 912 characters",
        "problems/transforms 0 rows",
        "pages collected collect_web 12 pages too large collect_web 1 11 pages",
        "no exercise extract_web 2 9 pages exercises found extract_web 40 exercises",
        "multi part filter_web 5 35 exercises exact duplicate filter_web 3 32 exercises",
        "no agreement filter_web 7 25 exercises trusted problems filter_web 25 exercises",
        "Answer agreement with a policy is switched off.",
        "sums_heldout sha256 ab12 curate exact 2 2",
        "sums_heldout sha256 ab12 filter_web ngrams 1 1",
        # Four pairs are requested, and there are four.
        *("Train text 1", "Held-out text 1", "Held-out text 3", "Held-out text 7"),
        "within benchmark near duplicates 3",
    ):
        assert told in text
    names = [f"{name} {rows} rows," for name, rows in (("problems/collected/sums", 3), ("web/pages", 1))]
    names += ["problems/train 11 rows,", "problems/transforms 0 rows,"]
    assert sorted(names, key=text.index) == names and page.count("<b>Length of") == 1 + 3 + 3
    assert "<script>alert" not in page and "\u202e" not in page
    assert page == make_page(run, "again.html")


def remove_tables(run):
    for path in (run / "data").rglob("*.parquet"):
        path.unlink()
    (run / "data/metrics/filter_web.json").unlink()


AGREEMENT = {"kind": "policy", "samples": 2, "temperature": 0.7}
NO_PAIRS = {**PARAMS["report"], "contamination_pairs": 0}


@pytest.mark.parametrize(
    ("change", "told", "gone"),
    [
        (
            params(filter_web={"agreement": AGREEMENT}),
            "one of 2 sampled responses of the base policy must reach the answer",
            "Answer agreement with a policy is switched off.",
        ),
        (params(report=NO_PAIRS), "curate exact 2 2", "Pairs with both texts"),
        (remove_tables, "No data stage has written a table yet.", "From pages to trusted problems"),
        # Tables of sources that the parameter file no longer names are left alone.
        (params(sources={"other": {}}), "problems/train 11 rows", "problems/collected/sums 3 rows"),
    ],
)
def test_what_differs_in_the_data_is_told(run, change, told, gone):
    change(run)
    text = Reader(make_page(run)).text
    assert told in text and gone not in text


def test_a_file_that_is_no_table_is_told(run):
    (run / "data/web/pages.parquet").write_text(json.dumps({"rows": 3}))
    with pytest.raises(UserError, match=r"pages\.parquet is not a readable Parquet file"):
        make_page(run)
