"""Collects one source of problems into one table: a pinned file, a hub, or a generator."""
