"""A package, so that the `tests` package one of the dependencies installs does not hide this folder."""
