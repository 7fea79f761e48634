"""Labels to exercises, and how far to trust them."""
