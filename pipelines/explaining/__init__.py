"""`retrace explain`: the chain from a score back to the raw bytes."""
