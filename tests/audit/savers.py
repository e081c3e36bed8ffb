"""Factories of what other libraries offer, for the audit."""

import os
from pathlib import Path


def memory():
    from langgraph.checkpoint.memory import InMemorySaver

    return InMemorySaver()


def sqlite():
    from langgraph.checkpoint.sqlite import SqliteSaver

    return SqliteSaver.from_conn_string(str(Path(os.environ["SAVER_FOLDER"]) / "saver.db"))


def postgres():
    from langgraph.checkpoint.postgres import PostgresSaver

    return PostgresSaver.from_conn_string(os.environ["SAVER_POSTGRES"])


def store():
    from langgraph.store.sqlite import SqliteStore

    return SqliteStore.from_conn_string(str(Path(os.environ["SAVER_FOLDER"]) / "store.db"))


def session():
    from agents.memory import SQLiteSession

    return SQLiteSession("audit", str(Path(os.environ["SAVER_FOLDER"]) / "session.db"))
