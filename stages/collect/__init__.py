"""Collects one source of problems into one table: a pinned file, a data set on a hub, or a generator."""
