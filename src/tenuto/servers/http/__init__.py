"""The HTTP server: the storage verbs for clients of tenuto, and a JSON API for people and other languages."""

from tenuto.servers.http.app import App
from tenuto.servers.http.settings import Settings

__all__ = ["App", "Settings"]
