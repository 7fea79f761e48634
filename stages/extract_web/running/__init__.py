"""Pages to tables: processes, shards, metrics."""
