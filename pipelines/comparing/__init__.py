"""`retrace compare`: which differences between policies are real, on the same problems."""
