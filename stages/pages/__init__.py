"""Rendering of pages: one stylesheet, plots, and the parts that pages share. It contains no page itself."""
