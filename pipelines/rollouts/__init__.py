"""`retrace rollouts`: a page for reading the responses of a round."""
