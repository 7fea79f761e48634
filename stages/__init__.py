"""The stages of the pipeline, the engines and algorithms that they run on, and their common foundations."""

import os

if "RETRACE_CODE" in os.environ:  # a running stage has started this process
    from stages.foundations.code_guard import guard_this_process

    guard_this_process()
