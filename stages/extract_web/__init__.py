"""Stage extract_web: pages in, candidates (problem, worked solution, short answer) out."""
