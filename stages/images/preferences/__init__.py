"""Preferences: annotators are judged, and the kept ones' rankings become pairs of images, split by prompt."""
