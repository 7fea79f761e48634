"""Observation of a stage and control of its process. Nothing here touches a value that reaches an output."""
