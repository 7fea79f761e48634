"""Stage `generate`: a generator's pictures of the prompts, as shards of PNG."""
