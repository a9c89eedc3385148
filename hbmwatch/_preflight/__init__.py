"""Whether a step fits, from shapes, before anything runs."""
