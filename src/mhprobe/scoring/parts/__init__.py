"""Outcomes of many masks on a split of the images, added up by a score."""
