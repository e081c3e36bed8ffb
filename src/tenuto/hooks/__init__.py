"""What observers are told: frozen events, and what can be done with them."""
