"""The operations of a decoder step, compiled for this machine or in plain torch."""
