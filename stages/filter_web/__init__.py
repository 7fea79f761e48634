"""Stage filter_web: candidates in, problems with solutions that may be trusted out, every drop with its reason."""
