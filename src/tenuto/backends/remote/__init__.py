"""A tenuto server as a store: the storage verbs over HTTP, confined to the tenant of the API key."""

from tenuto.backends.remote.backend import RemoteBackend

__all__ = ["RemoteBackend"]
