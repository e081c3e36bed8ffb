"""A Redis or Valkey server, a Sentinel group or a cluster: `RedisBackend`."""

from tenuto.errors import MissingDriver

try:
    from tenuto.backends.redis.backend import RedisBackend
    from tenuto.backends.redis.server import UncheckedServerWarning
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "redis":
        raise
    raise MissingDriver("The Redis driver is not installed. Run: pip install tenuto[redis]") from error

__all__ = ["RedisBackend", "UncheckedServerWarning"]
