"""Fixtures of the tests here: tiny checkpoints."""

from tests.tiny.fixtures import checkpoint as checkpoint
