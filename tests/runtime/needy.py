"""Hooks of a family that needs a package which nobody has."""

import a_package_that_nobody_has  # type: ignore[import-not-found]

load = a_package_that_nobody_has.load
