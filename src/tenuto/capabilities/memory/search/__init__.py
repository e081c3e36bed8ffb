"""Search: texts found by words, dates, speakers and, with an embedder, by meaning."""
