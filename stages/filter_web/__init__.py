"""Stage filter_web: candidates in, problems with trusted solutions out, every drop with its reason."""
