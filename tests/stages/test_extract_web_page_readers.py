"""Pages in processes that can be killed: one that hangs, crashes or fills memory is a drop, and only that one."""

import threading
import time

import pytest

from stages.extract_web.extraction import PageLimits, extract_page, read_pages
from stages.foundations.errors import UserError
from tests.fakes.processes import PATIENCE_SECONDS, descendants

LIMITS = PageLimits(max_answer_characters=40, seconds=60, memory_mib=1024)
TAKES_FIFTEEN_SECONDS = "1. a\n" * 1_000_000
TAKES_HALF_A_GIGABYTE = "\N{GRINNING FACE}" * 15_000_000


def page(number, content=None, form="html"):
    good = f"<h3>Exercise {number}</h3><p>Compute {number}+1.</p><h4>Solution</h4><p>{number + 1}</p>"
    return {"page_id": f"p{number}", "url": "u", "format": form, "licence": "MIT", "content": content or good}


GOOD = [page(number) for number in range(6)]
EXPECTED = [extract_page(one, 40) for one in GOOD]


def as_lists(outcomes):
    return [list(one) for one in outcomes]


def processes_left():
    return descendants("extract_page")


@pytest.mark.parametrize("processes", [1, 3])
def test_outcomes_are_those_of_the_page_alone_in_order(processes):
    assert as_lists(read_pages(GOOD, LIMITS, processes)) == as_lists(EXPECTED)
    assert list(read_pages([], LIMITS, processes)) == []
    assert processes_left() == []


def test_a_page_that_takes_too_long_is_a_drop():
    pages = [GOOD[0], page(1, TAKES_FIFTEEN_SECONDS, "markdown"), GOOD[2]]
    outcomes = list(read_pages(pages, PageLimits(40, seconds=4, memory_mib=256), 1))
    assert outcomes[1] == ([], "timed_out", "computed for more than 4 s")
    assert as_lists(outcomes[::2]) == as_lists(EXPECTED[:3:2])
    assert processes_left() == []


def test_a_page_that_takes_too_much_memory_is_a_drop():
    pages = [GOOD[0], page(1, TAKES_HALF_A_GIGABYTE, "text"), GOOD[2]]
    outcomes = list(read_pages(pages, PageLimits(40, seconds=60, memory_mib=256), 1))
    assert outcomes[1] == ([], "out_of_memory", "")
    assert as_lists(outcomes[::2]) == as_lists(EXPECTED[:3:2])


@pytest.mark.parametrize("times", [1, 2])
def test_a_reader_killed_from_outside_costs_no_page(times):
    """One death is made good; a second one stops the stage, since a poorer table would be cached as the right one."""

    def kill():
        killed = set()
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until and len(killed) < times:
            for child in set(processes_left()) - killed:
                if child.cpu_times().user > 0.8:  # it is at work on the page
                    child.kill()
                    killed.add(child)
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    pages = [page(1, TAKES_FIFTEEN_SECONDS, "markdown"), GOOD[0]]
    if times == 2:
        with pytest.raises(UserError, match="killed from outside"):
            list(read_pages(pages, LIMITS, 1))
    else:
        outcomes = list(read_pages(pages, LIMITS, 1))
        assert outcomes[0][1] != "crashed" and list(outcomes[1]) == list(EXPECTED[0])
    killer.join()


def test_stopping_early_leaves_no_process():
    outcomes = read_pages(GOOD * 10, LIMITS, 2)
    next(outcomes)
    outcomes.close()
    assert processes_left() == []


def test_too_little_memory_to_start_is_told():
    with pytest.raises(UserError, match="page_memory_mib is 8"):
        next(read_pages(GOOD, PageLimits(40, 60, memory_mib=8), 1))
