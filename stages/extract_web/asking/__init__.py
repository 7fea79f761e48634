"""A model as extractor: what it is asked, and what of its answers stands in the page."""
