"""Benchmarks: tenuto beside the raw driver, in one run, at equal durability. Run them with `python -m bench`."""
