"""Stage `code`: a fingerprint of the code that each stage runs, without comments and docstrings."""
