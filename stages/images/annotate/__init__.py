"""Annotations: judgements of a round's images by people or a simulated panel, checked row by row."""
