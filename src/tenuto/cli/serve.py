"""`tenuto serve`: serve a store over HTTP."""

from __future__ import annotations

import math
import os
import secrets
import socket
import ssl
import webbrowser
from urllib.parse import urlsplit

import click

from tenuto.backends import connect
from tenuto.backends.remote.url import is_loopback
from tenuto.capabilities.archive import ENVIRONMENT
from tenuto.cli.shared import guarded
from tenuto.errors import InvalidInput, StorageUnavailable
from tenuto.servers.auth import SCOPES
from tenuto.servers.http.settings import Settings

_MB = 1024 * 1024
_LOCAL = ("localhost", "127.0.0.1", "::1")


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        text = error.strerror or str(error)
        raise StorageUnavailable(f"{host}:{port} cannot be served ({text}). Use another --host or --port.") from error


def must_be_certificate(certificate: str, key: str) -> None:
    """Raise `InvalidInput` if the two files are no certificate with its key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise InvalidInput(
            f"--tls-cert and --tls-key cannot be used ({reason}); nothing was started. Name PEM files: the certificate "
            "chain, and its key without a password."
        ) from error


def _no_password() -> str:
    raise ValueError("the key has a password")


def local_token(*, trusted: bool) -> str | None:
    """Return the token of a server on loopback; a proxy in front would let others use it, so then only a chosen one."""
    return os.environ.get("TENUTO_TOKEN") or (None if trusted else f"tk_{secrets.token_urlsafe(32)}")


@click.command("serve")
@click.option("--url", envvar="TENUTO_URL", help="Store path or URL; default: $TENUTO_URL.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8377, show_default=True, help="Port to listen on; 0 chooses a free one.")
@click.option("--workers", default=1, show_default=True, help="Number of server processes; they share the port.")
@click.option(
    "--tenant", default="default", show_default=True, help="Tenant of the token that is printed at the start."
)
@click.option("--tls-cert", help="Certificate file (PEM); serves HTTPS.")
@click.option("--tls-key", help="Private key file (PEM).")
@click.option("--public-url", default="", help="Address that clients use, if a proxy is in front.")
@click.option("--trust-proxy", is_flag=True, help="A trusted proxy in front terminates TLS.")
@click.option("--insecure", is_flag=True, help="Serve other machines without TLS: anyone between can read the keys.")
@click.option("--read-only", is_flag=True, help="The printed token reads and changes nothing.")
@click.option("--open", "opens", is_flag=True, help="Open the inspector in a browser.")
@click.option("--max-body", default=20, show_default=True, help="Maximum size of a request in MB.")
@click.option("--rate", default=0.0, help="Maximum requests per second, API key and process; 0: no limit.")
@click.option("--metrics", is_flag=True, help="Serve /metrics for Prometheus, to API keys.")
@click.option("--access-log/--no-access-log", default=True, help="Log every request; writes are always logged.")
@guarded
def command(  # noqa: PLR0913, PLR0917 - the command's options
    url: str | None,
    host: str,
    port: int,
    workers: int,
    tenant: str,
    tls_cert: str | None,
    tls_key: str | None,
    public_url: str,
    trust_proxy: bool,  # noqa: FBT001 - click's way
    insecure: bool,  # noqa: FBT001
    read_only: bool,  # noqa: FBT001
    opens: bool,  # noqa: FBT001
    max_body: int,
    rate: float,
    metrics: bool,  # noqa: FBT001
    access_log: bool,  # noqa: FBT001
) -> None:
    """Serve the store over HTTP until SIGTERM or Ctrl-C; clients open it as Tenuto("name", "http://127.0.0.1:8377").

    On this machine alone, a token that opens it is printed at the start ($TENUTO_TOKEN sets one). Other machines need TLS, or a proxy that has it,
    and API keys: tenuto keys create NAME. With --trust-proxy no token is printed.
    """
    from tenuto.servers.http.serve import run  # noqa: PLC0415 - needs the extra

    if metrics:
        import tenuto.hooks.prometheus  # noqa: F401, PLC0415 - its error names the extra

    local = is_loopback(host)
    if not (local or insecure or trust_proxy or tls_cert):
        raise InvalidInput(
            f"Serving {host} without TLS would send API keys unencrypted; nothing was started. Pass --tls-cert and "
            "--tls-key, --trust-proxy for a proxy with TLS, or --insecure on a network that you trust."
        )
    if bool(tls_cert) != bool(tls_key):
        raise InvalidInput("--tls-cert and --tls-key belong together; nothing was started.")
    if tls_cert and tls_key:
        must_be_certificate(tls_cert, tls_key)
    if max_body < 1 or not 0 <= rate < math.inf:
        raise InvalidInput("--max-body must be 1 or more, and --rate 0 or more; nothing was started.")
    if workers < 1 or (workers > 1 and (url or "").startswith("volatile:")):
        raise InvalidInput("--workers must be 1 or more, and a volatile store has one process; nothing was started.")
    token = local_token(trusted=trust_proxy) if local else None
    named = urlsplit(public_url).hostname
    settings = Settings(
        hosts=(*_LOCAL, host, *((named,) if named else ())) if local or named else None,
        public_url=public_url.rstrip("/"),
        token=token,
        token_tenant=tenant,
        token_scopes=("read",) if read_only else SCOPES,
        max_body=max_body * _MB,
        rate=rate,
        metrics=metrics,
        access_log=access_log,
        archive=os.environ.get(ENVIRONMENT, ""),
    )
    backend = connect(url)
    if type(backend).__name__ == "RemoteBackend":
        raise InvalidInput(
            "A server is run where the store is; nothing was started. Use the URL of the store, not of a server."
        )
    backend.now()  # opens the store, so that an error of it is reported here
    backend.close()
    listener = _listener(host, port)
    scheme = "https" if tls_cert else "http"
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"serving {scheme}://{shown}:{listener.getsockname()[1]}", err=True)
    if token is not None and not os.environ.get("TENUTO_TOKEN"):
        click.echo(f"TENUTO_API_KEY={token}", err=True)
    address = f"{settings.public_url or f'{scheme}://{shown}:{listener.getsockname()[1]}'}/inspector/"
    printed = f"{address}#key={token}" if token is not None and not os.environ.get("TENUTO_TOKEN") else address
    click.echo(f"inspector {printed}", err=True)
    if opens:  # the listener exists, so the browser's request waits until the server accepts it
        webbrowser.open(f"{address}#key={token}" if token is not None else address)
    run(url, settings, listener, workers=workers, ssl_certfile=tls_cert, ssl_keyfile=tls_key)
