"""Composition root and the two Python faces, blocking and asynchronous."""
