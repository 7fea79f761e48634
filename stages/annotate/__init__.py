"""Annotations: what people, or a simulated panel, say of a round's images, checked row by row."""
