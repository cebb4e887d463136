"""Control plane: the messages between processes and the channels that carry them."""
