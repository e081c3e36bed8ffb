"""Servers: the same API for other machines and other languages."""
