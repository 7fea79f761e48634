"""Stage `scorer_base`: the picture scorer that reward models start from, and that they are compared with."""
