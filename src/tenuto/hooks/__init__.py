"""Hooks: frozen events for observers, and observers that use them."""
