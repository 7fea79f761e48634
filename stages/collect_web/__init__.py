"""Stage collect_web: web pages from folders, JSONL files, WARC archives or a generator, as one table."""
