"""Adapters for agent frameworks. Only the file or package of a framework imports it."""
