"""Fixtures of the tests here: tiny checkpoints, compiled kernels."""

from tests.tiny.fixtures import checkpoint as checkpoint
from tests.tiny.fixtures import kernels as kernels
