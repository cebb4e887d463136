"""What clients send: one module per endpoint, strict."""
