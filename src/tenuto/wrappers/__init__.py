"""Wrappers: each takes a backend and implements the same contract."""
