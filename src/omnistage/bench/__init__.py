"""Load generators and reports for a running server."""
