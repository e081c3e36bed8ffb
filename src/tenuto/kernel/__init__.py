"""The storage contract: its verbs and types, and pure functions on them. No I/O."""
