"""What draws a page: one stylesheet, plots, and the parts that pages share. No page of its own."""
