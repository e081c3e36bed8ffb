"""Frameworks on tenuto: one file each, which alone imports the framework."""
