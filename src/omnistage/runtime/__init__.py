"""The shell around the machine: driver, processes, supervisor, inline mode."""
