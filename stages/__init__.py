"""The stages of the pipeline, the engines and algorithms that they run on, and their common foundations."""

import os

if "DVC_STAGE" in os.environ or "RETRACE_CODE" in os.environ:  # a stage, or a process that one has started
    from stages.foundations.code_guard import guard_this_process

    guard_this_process()
