"""Data plane: one file for each way a payload can travel."""
