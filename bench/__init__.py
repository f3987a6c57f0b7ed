"""Measurements: see `make bench`."""
