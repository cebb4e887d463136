"""Inputs are prepared in helper processes of their stage's worker, so that a long prompt holds up no step."""
