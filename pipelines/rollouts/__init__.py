"""`retrace rollouts`: a page to read what a round has sampled."""
