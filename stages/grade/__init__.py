"""Grading: stored responses are verified and summed up as scores with intervals. Needs no GPU."""
