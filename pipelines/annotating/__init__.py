"""`retrace annotations`: tasks for Label Studio, and its exports back."""
