"""Benchmarks: tenuto compared with the raw driver, in one run, at equal durability. Run: `python -m bench`."""
