"""Stage `code`: a fingerprint of the code that each stage runs, blind to comments and docstrings."""
