"""How much work a function does, in a measure that no other process on the machine can change."""

import sys


def steps(work):
    """Lines of Python that `work` executes, in whatever it calls; what C code does inside a line counts as one."""
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
