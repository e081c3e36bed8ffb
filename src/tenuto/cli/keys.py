"""`tenuto keys`: the API keys of a server, on the store that it serves."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

import click

from tenuto.backends import connect
from tenuto.cli.render import table
from tenuto.cli.shared import confirm, guarded, show_json
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput
from tenuto.servers.auth import SCOPES, Keys
from tenuto.wrappers.encrypt import encrypted

_URL = click.option("--url", envvar="TENUTO_URL", help="Store path or URL; default: $TENUTO_URL.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class AnswerLink(NamedTuple):
    """A link to the page of a question."""

    link: str


def _keys(url: str | None) -> Keys:
    backend = connect(url)
    if hasattr(backend, "target") and type(backend).__name__ == "RemoteBackend":
        raise InvalidInput("API keys are managed where the store is. Use the URL of the store, not of the server.")
    return Keys(encrypted(backend))


@click.group("keys", no_args_is_help=True)
def command() -> None:
    """API keys of a server: create, list, revoke, rotate; and links to answer one question."""


@command.command("create")
@click.argument("name")
@click.option("--tenant", default="default", show_default=True, help="Tenant whose data the key opens.")
@click.option(
    "--scope", "scopes", type=click.Choice(SCOPES), multiple=True, default=["write"], show_default=True,
    help="What the key allows; repeat it for several.",
)  # fmt: skip
@click.option("--prefix", default="", help="Only scopes of the state, leases and threads that begin with this text.")
@click.option("--expires", help='How long the key is valid, e.g. "90d"; default: until it is revoked.')
@_URL
@_JSON
@guarded
def create(
    name: str, tenant: str, scopes: tuple[str, ...], prefix: str, expires: str | None, url: str | None, *, as_json: bool
) -> None:
    """Create an API key and print it. It is shown once; the store keeps a hash.

    NAME is the name of the key, in the audit log and as the writer of what it writes.
    """
    made = _keys(url).create(name, tenant=tenant, scopes=scopes, prefix=prefix, expires=expires)
    show_json(made) if as_json else click.echo(made.api_key)


@command.command("list")
@_URL
@_JSON
@guarded
def list_(url: str | None, *, as_json: bool) -> None:
    """List the API keys, without their secrets."""
    found = _keys(url).list()
    if as_json:
        show_json(found)
    elif found:
        columns = ("id", "name", "tenant", "scopes", "prefix", "expires_at", "revoked_at", "last_used_at")
        click.echo("\n".join(table(found, columns)))
    else:
        click.echo("none", err=True)


@command.command("revoke")
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_URL
@_JSON
@guarded
def revoke(key: str, url: str | None, *, yes: bool, as_json: bool) -> None:
    """Revoke an API key, at once for every server process.

    KEY is the name or id of the key.
    """
    confirm(f"Revoke the API key {key!r}?", yes=yes)
    found = _keys(url).revoke(key)
    if as_json:
        show_json(found)


@command.command("rotate")
@click.argument("key")
@click.option("--overlap", help='How long the old key stays valid, e.g. "24h"; default: it ends now.')
@_URL
@_JSON
@guarded
def rotate(key: str, overlap: str | None, url: str | None, *, as_json: bool) -> None:
    """Replace an API key by a new one with the same name and rights; print the new one.

    KEY is the name or id of the key.
    """
    made = _keys(url).rotate(key, overlap=overlap)
    show_json(made) if as_json else click.echo(made.api_key)


@command.command("link")
@click.argument("question")
@click.option("--by", required=True, help="Person who answers with the link.")
@click.option("--tenant", default="default", show_default=True, help="Tenant of the question.")
@click.option("--expires", default="24h", show_default=True, help="How long the link is valid.")
@click.option("--server", default="http://127.0.0.1:8377", show_default=True, help="Address of the server.")
@_URL
@_JSON
@guarded
def link(question: str, by: str, tenant: str, expires: str, server: str, url: str | None, *, as_json: bool) -> None:
    """Print a link with which a person answers one question once, without a key.

    QUESTION is the question id.
    """
    with Tenuto("command line", url, tenant=tenant) as agent:
        token = agent.inbox.token(question, by=by, expires=expires)
    place = server.rstrip("/") + ("" if tenant == "default" else f"/tenants/{quote(tenant, safe='')}")
    address = f"{place}/answer/{token}"
    show_json(AnswerLink(address)) if as_json else click.echo(address)
