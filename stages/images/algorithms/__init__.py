"""Formulas of the text-to-image branch, and its world of shapes."""
