"""Which blocks label what."""
