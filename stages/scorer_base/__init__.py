"""Stage `scorer_base`: the scorer of pictures that reward models start from, and that they are compared with."""
