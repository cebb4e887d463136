"""Pipelines (by model authors), deployments (by operators) and their resolution into one frozen plan."""
