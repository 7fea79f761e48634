"""Ablations: the table of a paper as variants and seeds of one recipe, run, measured and compared."""
