"""`tenuto migrate`: what a role that may not run DDL is told to have run."""

import subprocess
import sys

import psycopg
import pytest


def tenuto(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tenuto", *arguments], capture_output=True, text=True, check=False)


def test_the_printed_sql_makes_the_store(server) -> None:
    url = f"{server.url}{'&' if '?' in server.url else '?'}schema=printed"
    assert tenuto("migrate", "--url", url, "--check").returncode == 1
    printed = tenuto("migrate", "--url", url, "--sql")
    assert printed.returncode == 0, printed.stderr
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(printed.stdout)
    checked = tenuto("migrate", "--url", url, "--check")
    assert (checked.returncode, checked.stdout) == (0, "nothing is missing\n")


def test_migrate_makes_the_store(server) -> None:
    url = f"{server.url}{'&' if '?' in server.url else '?'}schema=migrated"
    assert tenuto("migrate", "--url", url).returncode == 0
    assert tenuto("migrate", "--url", url, "--check").returncode == 0


@pytest.mark.parametrize("url", ["volatile:", "mysql://x", "postgresql://127.0.0.1:1/none?timeout=2"])
def test_what_cannot_be_migrated_is_said_in_a_sentence(url: str) -> None:
    told = tenuto("migrate", "--url", url, "--check")
    assert told.returncode == (6 if url.startswith("postgresql") else 2)
    assert told.stderr.strip().endswith(".")
    assert "Traceback" not in told.stderr
