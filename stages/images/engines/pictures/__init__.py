"""Pictures as tables: shards of PNG in Parquet, so that tens of thousands of pictures are a few files."""
