"""Measures a function's work in a unit that does not depend on other processes of the machine."""

import sys


def steps(work):
    """Returns the number of Python lines that `work` executes, in all calls; C code inside a line counts as one."""
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted
