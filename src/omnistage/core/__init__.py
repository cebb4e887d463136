"""Requests, outputs, parameters, payloads and errors: the values that every other package speaks in."""
