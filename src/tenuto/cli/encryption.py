"""`tenuto encryption`: make a key, rotate the keys of a tenant, destroy the key of a user."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from tenuto.cli.shared import confirm, guarded, opened, show_json, store_options
from tenuto.errors import NotFound
from tenuto.wrappers.encrypt import new_key


class NewKey(NamedTuple):
    """A new encryption key, as text."""

    key: str


class Destroyed(NamedTuple):
    """The user whose key was destroyed."""

    user: str


@click.group("encryption", no_args_is_help=True)
def command() -> None:
    """Encryption of the store: make a key, rotate keys, destroy the key of a user.

    The key is read from $TENUTO_ENCRYPTION_KEY: the key, several with commas between them, or file:PATH.
    """


@command.command("new")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@guarded
def new(*, as_json: bool) -> None:
    """Print a new random key. It is stored nowhere: without it the data it encrypts is lost."""
    made = NewKey(new_key())
    show_json(made) if as_json else click.echo(made.key)


@command.command("rotate")
@store_options
@guarded
def rotate(url: str | None, tenant: str, *, as_json: bool) -> None:
    """Protect a tenant's data keys with the first key of $TENUTO_ENCRYPTION_KEY, and begin a new data key.

    Set the variable to NEW,OLD first. Killed at any point, run it again. When it is done, OLD opens nothing.
    """
    with opened(url, tenant) as agent:
        done = agent.store.rotate()
    if as_json:
        show_json(done)
    else:
        click.echo(f"{done.data_keys} data keys are protected by the first key; {done.user_keys} records sealed anew")


@command.command("destroy-user-key")
@click.argument("user")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_options
@guarded
def destroy_user_key(user: str, url: str | None, tenant: str, *, yes: bool, as_json: bool) -> None:
    """Forget a user at once by destroying the key of what is the user's. This cannot be undone.

    USER is the user id.
    """
    confirm(f"Destroy the key of {user!r}? Nothing that it encrypts can be read again.", yes=yes)
    with opened(url, tenant) as agent:
        if not agent.store.destroy_user_key(user):
            raise NotFound(
                f"The user {user!r} has no key: nothing was written for this user, or it was destroyed before."
            )
    result: Any = Destroyed(user)
    show_json(result) if as_json else click.echo(f"the key of {user} is destroyed")
