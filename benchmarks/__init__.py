"""Measurements. Rows are printed and kept in out/bench.json; none of them is a test."""
