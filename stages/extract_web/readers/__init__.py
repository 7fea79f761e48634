"""Page formats to blocks, or to exercises where the author marked them."""
