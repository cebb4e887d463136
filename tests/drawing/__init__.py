"""A family that draws: a model of a few numbers, and everything around it."""
