"""The database's tables, their version, and how an older database becomes this one.

session > block > process > sample. The block is a column: it has nothing of its own. Whatever a query must
filter or sort by is a column; the rest of a process is one JSON text, so that a new probe needs no new
schema.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

VERSION = 3

metadata = sa.MetaData()

meta = sa.Table(
    "detente_meta",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("started", sa.Float, nullable=False, index=True),
    sa.Column("fingerprint", sa.Text, nullable=False),  # SHA-256; which sessions may be compared at all
    sa.Column("head", sa.Text, nullable=False),  # JSON of records.Session without processes
)

# The same few version sets appear in thousands of processes.
versions = sa.Table(
    "versions",
    metadata,
    sa.Column("hash", sa.Text, primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
)

processes = sa.Table(
    "processes",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),  # position in the session, from 0
    sa.Column("cell", sa.Text, nullable=False),  # Cell.key
    sa.Column("workload", sa.Text, nullable=False),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("block", sa.Integer, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("median_s", sa.Float),  # median seconds per step over the samples; NULL without samples
    sa.Column("versions", sa.Text, sa.ForeignKey("versions.hash"), nullable=False),
    sa.Column("body", sa.Text, nullable=False),  # JSON of records.Process without samples
    sa.UniqueConstraint("session_id", "number"),
)

# Covers what history asks for, so it never touches the bodies: 50,000 of them are hundreds of megabytes.
sa.Index(
    "history",
    processes.c.session_id,
    processes.c.workload,
    processes.c.label,
    processes.c.kind,
    processes.c.status,
    processes.c.block,
    processes.c.cell,
    processes.c.versions,
    processes.c.median_s,
)
sa.Index("found", processes.c.workload, processes.c.label, processes.c.session_id)

samples = sa.Table(
    "samples",
    metadata,
    sa.Column("process_id", sa.Integer, sa.ForeignKey("processes.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("wall_ns", sa.Integer, nullable=False),
    sa.Column("steps", sa.Integer, nullable=False),
    sa.Column("cpu_ns", sa.Integer, nullable=False),
    sa.Column("compile_events", sa.Integer, nullable=False),
    sqlite_with_rowid=False,
)

# What the judge said of a cell when the session was judged: history leaves void cells out. ``load``: what others did to
# the machine, of the whole session, empty where it was quiet; NULL of judgements that did not say so.
judgements = sa.Table(
    "judgements",
    metadata,
    sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("cell", sa.Text, primary_key=True),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("load", sa.Text),
)


def _without_clock(connection: sa.Connection) -> None:
    """A column that nothing ever filled."""
    connection.exec_driver_sql("ALTER TABLE samples DROP COLUMN clock_mhz")


def _with_load(connection: sa.Connection) -> None:
    """Whether others used the machine. Who asks for a session of before is told by its processes, judged again."""
    connection.exec_driver_sql("ALTER TABLE judgements ADD COLUMN load TEXT")


# from version -> the change that makes the next version. Each runs in one transaction with the version's
# update.
MIGRATIONS: dict[int, Callable[[sa.Connection], None]] = {1: _without_clock, 2: _with_load}
