"""What storage must do: a handful of verbs, their types, and pure functions. No I/O lives here."""
