"""Logging, metrics and traces; knows nothing of the rest of the package."""
