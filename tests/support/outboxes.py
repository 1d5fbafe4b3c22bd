"""Databases of a program, with an outbox table: SQLite beside the queue, and a PostgreSQL server of the test's own."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import PATIENCE_SECONDS

SQLITE = """
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key, body NOT NULL, headers TEXT, relayed_at TEXT
)
"""
POSTGRESQL = """
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text, body bytea NOT NULL, headers jsonb, relayed_at timestamptz
)
"""
Connect = Callable[[], Any]


@contextmanager
def sqlite_outbox(place: Path) -> Iterator[Connect]:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(place / "program.db")

    db = connect()
    db.execute(SQLITE)
    db.commit()
    db.close()
    yield connect


def postgres_programs() -> Path | None:
    """Return the directory of initdb and pg_ctl, if they are installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    program = str(found[-1]) if found else shutil.which("initdb")
    return None if program is None else Path(program).parent


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server that listens only on a socket in a directory, and yield that. Skip the test if that is not possible.

    Its user is "program".
    """
    pytest.importorskip("psycopg", reason="needs psycopg")
    programs = postgres_programs()
    if programs is None:
        pytest.skip("needs a PostgreSQL server")
    # not below tmp_path or TMPDIR: the server's user can't enter these, and the path of a socket must be short
    place = tempfile.mkdtemp(prefix="strictq-pg-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp")
    # PostgreSQL refuses to run as root.
    user: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}

    def run(*command: str) -> None:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS, **user)
        assert done.returncode == 0, done.stderr + done.stdout

    try:
        if user:
            shutil.chown(place, "postgres")
        run(f"{programs}/initdb", "-D", f"{place}/data", "-U", "program", "-A", "trust", "--no-sync")
        options = f"-k {place} -c listen_addresses= -c fsync=off"
        run(f"{programs}/pg_ctl", "-D", f"{place}/data", "-w", "-l", f"{place}/log", "-o", options, "start")
        try:
            yield place
        finally:
            run(f"{programs}/pg_ctl", "-D", f"{place}/data", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def postgres_outbox() -> Iterator[Connect]:
    """Run a server with an outbox. See postgres_server."""
    with postgres_server() as place:
        import psycopg

        def connect() -> Any:
            return psycopg.connect(host=place, user="program", dbname="postgres")

        with connect() as db:
            db.execute(POSTGRESQL)
        yield connect
