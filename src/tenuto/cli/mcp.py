"""`tenuto mcp`: serve coding agents over stdio, or over HTTP."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

import click

from tenuto.backends import connect
from tenuto.backends.remote.url import is_loopback
from tenuto.capabilities.archive import ENVIRONMENT
from tenuto.cli.examinations import _without_password
from tenuto.cli.shared import guarded
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput
from tenuto.operations import OPERATIONS
from tenuto.servers.mcp.place import Place, place_of

_TOOLS = "TENUTO_MCP_TOOLS"


@click.command("mcp")
@click.option("--url", help="Store path or URL; default: $TENUTO_URL, else the project's store.")
@click.option("--folder", type=click.Path(file_okay=False), help="Folder of the project; default: this folder.")
@click.option("--user", is_flag=True, help="Use one store for all projects of this user.")
@click.option("--tenant", default="default", show_default=True, help="Tenant whose data is used.")
@click.option("--name", default="mcp", show_default=True, help="Writer of what is stored, e.g. the name of the host.")
@click.option("--http", "is_http", is_flag=True, help="Serve streamable HTTP at /mcp instead of stdio.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on, with --http.")
@click.option("--port", default=8378, show_default=True, help="Port to listen on, with --http; 0 chooses a free one.")
@click.option("--public-url", default="", help="Address that clients use, if a proxy is in front.")
@click.option("--trust-proxy", is_flag=True, help="A trusted proxy in front terminates TLS.")
@guarded
def command(  # noqa: PLR0913, PLR0917 - the command's options
    url: str | None,
    folder: str | None,
    user: bool,  # noqa: FBT001 - click's way
    tenant: str,
    name: str,
    is_http: bool,  # noqa: FBT001
    host: str,
    port: int,
    public_url: str,
    trust_proxy: bool,  # noqa: FBT001
) -> None:
    """Serve coding agents as an MCP server: progress, memories, values, checkpoints, questions to people.

    Hosts start it; tenuto setup adds it to them. It stores in .tenuto at the root of the git repository, else in the
    user's own store, and prints the place to stderr. $TENUTO_MCP_TOOLS is all, core, or names separated by commas.
    Over HTTP callers need an API key: tenuto keys create NAME.
    """
    from tenuto.servers.mcp import tools  # noqa: PLC0415 - only when it is called

    place = place_of(url, folder, user=user)
    chosen = tools.chosen(os.environ.get(_TOOLS), place.task)
    if is_http:
        _serve(place, chosen, tenant, host, port, public_url.rstrip("/"), trusted=trust_proxy)
        return
    with Tenuto(name, place.url, tenant=tenant) as agent:
        threading.Thread(target=_warm, args=(agent,), daemon=True).start()
        from tenuto.servers.mcp import server  # noqa: PLC0415 - needs the extra, and takes half a second

        click.echo(f"tenuto: {_of(place)}, {len(chosen)} tools, over stdio", err=True)
        if sys.stdin.isatty():
            click.echo(
                "This is an MCP server: it waits for a host to speak JSON-RPC on stdin. To add it to a host:\n"
                "  tenuto setup claude --hooks      (or codex, cursor, vscode, gemini)\n"
                "Control-C ends it.",
                err=True,
            )
        server.run_stdio(agent, chosen)


def _warm(agent: Tenuto) -> None:
    """Read what the first `resume` and `recall` need, while the SDK is imported and the host says hello."""
    with contextlib.suppress(Exception):  # the first call will raise it, and report it
        agent.memory.recall("what is next", 1)
        OPERATIONS["resume"].call(agent)


def _of(place: Place) -> str:
    kinds = {"project": "store of the project", "user": "store of this user", "given": "store"}
    return f"{kinds[place.kind]} {_without_password(place.url)}"


def _serve(place: Place, chosen: Any, tenant: str, host: str, port: int, public_url: str, *, trusted: bool) -> None:
    from tenuto.cli.serve import _LOCAL, _listener, local_token  # noqa: PLC0415 - only with --http
    from tenuto.servers.http.logs import configure  # noqa: PLC0415 - only with --http
    from tenuto.servers.http.serve import Server, configured  # noqa: PLC0415 - needs the extra server
    from tenuto.servers.http.settings import Settings  # noqa: PLC0415
    from tenuto.servers.mcp.http import PATH, McpApp  # noqa: PLC0415
    from tenuto.wrappers.encrypt import encrypted  # noqa: PLC0415

    local = is_loopback(host)
    if not local and not trusted:
        raise InvalidInput(
            f"Serving {host} without TLS would send API keys unencrypted; nothing was started. Put a proxy with TLS in "
            "front and pass --trust-proxy."
        )
    backend = connect(place.url)
    if type(backend).__name__ == "RemoteBackend":
        raise InvalidInput("MCP over HTTP is served where the store is; nothing was started. Use the URL of the store.")
    token = local_token(trusted=trusted) if local else None
    named = urlsplit(public_url).hostname
    hosts = (*_LOCAL, host, *((named,) if named else ())) if local or named else None
    settings = Settings(
        hosts=hosts, public_url=public_url, token=token, token_tenant=tenant, archive=os.environ.get(ENVIRONMENT, "")
    )
    listener = _listener(host, port)
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"tenuto: {_of(place)}, {len(chosen)} tools", err=True)
    click.echo(f"serving MCP at http://{shown}:{listener.getsockname()[1]}{PATH}", err=True)
    if token is not None and not os.environ.get("TENUTO_TOKEN"):
        click.echo(f"TENUTO_API_KEY={token}", err=True)
    configure(access=settings.access_log)
    app = McpApp(encrypted(backend), chosen, settings)
    Server(configured(app), app.stop).run(sockets=[listener])
