"""Preferences: annotators are judged, and what the kept ones say becomes pairs of images, split by prompt."""
