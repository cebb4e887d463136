"""From outputs to what clients read: pure functions, one module per endpoint."""
