"""One process that reads pages: a page as a JSON line in, its outcome as a JSON line out, to the end of its input.

    python -m stages.extract_web.page_worker PARENT MEMORY_MIB

Its parent enforces the wall clock from outside, because a parser inside C code hears no alarm. Here are the limits that
a process must put on itself: memory, no file written, no core dump, and dying with the parent.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

from stages.observe.lifetime import die_with_parent


def confine(parent: int, memory_mib: int) -> None:
    """Ties this process to `parent` (a process id) and limits it; what already holds here is never raised."""
    die_with_parent()
    if os.getppid() != parent:
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for limit, value in (
        (resource.RLIMIT_AS, memory_mib << 20),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def main(parent: int, memory_mib: int) -> None:
    """Says {"ready": true} when the readers are loaded. Ends after a page that exhausted the memory."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    confine(parent, memory_mib)
    from stages.extract_web.extraction import extract_page

    answers.write(b'{"ready": true}\n')
    answers.flush()
    reason = ""
    while reason != "out_of_memory":
        try:
            line = sys.stdin.buffer.readline()
            if not line:
                return
            request = json.loads(line)
            found, reason, detail = extract_page(request["page"], request["max_answer_characters"])
            answer = json.dumps([found, reason, detail]).encode()
        except MemoryError:
            reason, answer = "out_of_memory", b'[[], "out_of_memory", ""]'
        answers.write(answer + b"\n")
        answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
