"""`tenuto verify`: check a store, digest a tenant, and compare it with another store."""

from __future__ import annotations

import sys
from typing import NamedTuple

import click

from tenuto.capabilities.store import Difference
from tenuto.cli.progress import Progress
from tenuto.cli.shared import FAILURE, guarded, opened, show_json, store_options
from tenuto.kernel.contract import Finding


class Verified(NamedTuple):
    """The --json output."""

    ok: bool
    records: int
    streams: int
    entries: int
    digest: str
    findings: list[Finding]
    differences: list[Difference]


@click.command("verify")
@click.option("--against", metavar="URL", help="Compare the tenant with that of another store.")
@click.option("--against-tenant", help="The tenant of the other store; default: the same.")
@store_options
@guarded
def command(against: str | None, against_tenant: str | None, url: str | None, tenant: str, *, as_json: bool) -> None:
    """Verify all stored data, and print the number of rows of the tenant and a digest of them; exit 1 for any finding.

    Equal stores have equal digests, whatever their backends. With --against each row that differs is listed.
    """
    unequal: list[Difference] = []
    with opened(url, tenant) as agent:
        with Progress("verifying") as progress:
            findings = agent.store.check().findings
            held = agent.store.summary(progress=progress.at)
        if against is not None:
            with opened(against, against_tenant or tenant) as other, Progress("comparing") as progress:
                unequal = agent.store.compare(other.store, progress=progress.at)
    ok = not findings and not unequal
    if as_json:
        show_json(Verified(ok, *held, findings=findings, differences=unequal))
    else:
        click.echo(
            f"{held.records:,} records and {held.entries:,} entries of {held.streams:,} streams; digest {held.digest}"
        )
        for finding in findings:
            click.echo(f"{finding.kind}: {finding.detail}")
        for one in unequal:
            click.echo(f"{one.kind} {one.key}: {one.detail}")
        if ok:
            click.echo("no damage found" + ("" if against is None else ", and equal to the other store"))
    if not ok:
        sys.exit(FAILURE)
