"""The tables, one schema on every database, and its migrations."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    inspect,
    select,
    text,
)

from ..types.errors import StoreError

VERSION = 4

metadata = MetaData()

meta = Table("meta", metadata, Column("name", String, primary_key=True), Column("value", String, nullable=False))

# One row a host process. `lock` is a file that the process holds locked with the kernel while it lives.
hosts = Table(
    "hosts",
    metadata,
    Column("id", String, primary_key=True),
    Column("machine", String, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("lock", String, nullable=False),
    Column("heartbeat", Float, nullable=False),  # the wall clock, for other machines
    Column("uptime", Float, nullable=False),  # the machine's own clock, which nobody sets
)

# The lease of a session is (holder, epoch, busy): a turn runs while busy; between turns the next one to claim it may
# be another host, which raises the epoch and thereby puts the former one out of the store and of the keeper.
sessions = Table(
    "sessions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("key", String, nullable=False, unique=True),
    Column("harness", String, nullable=False),
    Column("native_id", String),
    Column("native_ids", JSON, nullable=False),
    Column("new_id", String, nullable=False),
    Column("workdir", String, nullable=False),
    Column("owned", Boolean, nullable=False),
    Column("rules", JSON, nullable=False),
    Column("callables", JSON, nullable=False),
    Column("status", String, nullable=False),
    Column("created", Float, nullable=False),
    Column("updated", Float, nullable=False),
    Column("holder", String),
    Column("epoch", Integer, nullable=False),
    Column("busy", Boolean, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("program", JSON),
    Column("progress", JSON),
    Column("frame", Integer, nullable=False),
    Column("native", JSON),
    Column("finished", Integer, nullable=False),
    Column("usage", JSON, nullable=False),
    Column("cost", Float, nullable=False),
    Column("unpriced", Integer, nullable=False),
    Column("ephemeral", Boolean, nullable=False, default=False),  # nobody has its key
    Column("notices", JSON, nullable=False, default=list),  # files that the agent is still to be told of
    Column("marked", JSON, nullable=False, default=dict),  # staged files that are artifacts, with their media types
    Column("always", JSON, nullable=False, default=dict, server_default="{}"),  # questions answered for good, and how
    Column("branch", JSON),  # the conversation that the running turn begins; the session's own once that turn is done
    sqlite_autoincrement=True,  # the id of a deleted session is never another's: a process may still hold the old one
)

# The inbox. `owner` is the host process whose callbacks belong to the turn; `position` the order of service.
turns = Table(
    "turns",
    metadata,
    Column("position", Integer, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("session", Integer, ForeignKey("sessions.id"), nullable=False),
    Column("owner", String, nullable=False),
    Column("status", String, nullable=False),
    Column("accepted", Float, nullable=False),
    Column("first", Integer, nullable=False),
    Column("input", JSON, nullable=False),
    Column("stop", String),
    Column("result", JSON),
    Column(
        "answers", JSON(none_as_null=True)
    ),  # to its open questions, left by other processes than the one that runs it
    Index("turns_waiting", "session", "status", "position"),
)

records = Table(
    "records",
    metadata,
    Column("session", Integer, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("at", Float, nullable=False),
    Column("turn", String),
    Column("parent", String),
    Column("event", Text, nullable=False),
)

# Versions of the agent's results, never changed; the newest of a path has the highest number.
artifacts = Table(
    "artifacts",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("session", Integer, ForeignKey("sessions.id"), nullable=False),
    Column("turn", String, nullable=False),
    Column("path", String, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("media_type", String),
    Column("sha256", String, nullable=False),
    Index("artifacts_of", "session", "path"),
)

# What the native conversation holds, to recognise the caller's transcript by: a row for each turn, numbered as the
# turn's first record. ``at`` is the program's name for the place after the turn; without ``sure`` nobody knows what the
# conversation holds from that turn on.
spoken = Table(
    "spoken",
    metadata,
    Column("session", Integer, ForeignKey("sessions.id"), primary_key=True, autoincrement=False),
    Column("first", Integer, primary_key=True, autoincrement=False),
    Column("entries", JSON, nullable=False),
    Column("at", String),
    Column("sure", Boolean, nullable=False),
)

# The calls of the app's tools in turns that are open, so that none is run twice. ``host`` is who runs it; without
# ``outcome`` it has not ended.
tool_calls = Table(
    "tool_calls",
    metadata,
    Column("session", Integer, ForeignKey("sessions.id"), primary_key=True, autoincrement=False),
    Column("key", String, primary_key=True),
    Column("turn", String, nullable=False),
    Column("tool", String, nullable=False),
    Column("host", String, nullable=False),
    Column("outcome", JSON(none_as_null=True)),
)


# Files of messages that were put into the workspace, and what was put there.
attached = Table(
    "attached",
    metadata,
    Column("session", Integer, ForeignKey("sessions.id"), primary_key=True, autoincrement=False),
    Column("path", String, primary_key=True),
    Column("content", String, nullable=False),
    Column("file", JSON, nullable=False),
)


LOST = (
    "it is empty, or not there, and beside it are the folders of sessions, which it should know. Put it back from a copy, "
    "together with its -wal file; or move the folder 'sessions' elsewhere to begin anew"
)


def migrate(conn: Connection, *, make: bool = True) -> None:
    """Bring the database to this version; with ``make=False`` not an empty one. Raises StoreError when it is newer or not
    hostler's."""
    names = set(inspect(conn).get_table_names())
    if not names and not make:
        raise StoreError(LOST)
    if not names:
        metadata.create_all(conn)
        conn.execute(meta.insert(), {"name": "version", "value": str(VERSION)})
        return
    if "meta" not in names:
        raise StoreError("this database holds tables that are not hostler's")
    found = conn.execute(select(meta.c.value).where(meta.c.name == "version")).scalar()
    version = int(found) if found and found.isdigit() else 0
    if version > VERSION:
        raise StoreError(
            f"it was written by a newer hostler (schema {version}, this one knows {VERSION}); upgrade hostler"
        )
    for number in range(version + 1, VERSION + 1):
        for statement in MIGRATIONS[number]:
            conn.execute(text(statement))
    conn.execute(meta.update().where(meta.c.name == "version").values(value=str(VERSION)))


# Version to the statements that lead to it from the one before.
MIGRATIONS: dict[int, tuple[str, ...]] = {
    2: (
        "ALTER TABLE turns ADD COLUMN answers JSON",
        "ALTER TABLE sessions ADD COLUMN always JSON NOT NULL DEFAULT '{}'",
    ),
    3: (
        "ALTER TABLE sessions ADD COLUMN branch JSON",
        'CREATE TABLE spoken (session INTEGER NOT NULL REFERENCES sessions (id), "first" INTEGER NOT NULL, '
        'entries JSON NOT NULL, "at" VARCHAR, sure BOOLEAN NOT NULL, PRIMARY KEY (session, "first"))',
        "CREATE TABLE attached (session INTEGER NOT NULL REFERENCES sessions (id), path VARCHAR NOT NULL, "
        "content VARCHAR NOT NULL, file JSON NOT NULL, PRIMARY KEY (session, path))",
    ),
    4: (
        "CREATE TABLE tool_calls (session INTEGER NOT NULL REFERENCES sessions (id), key VARCHAR NOT NULL, "
        "turn VARCHAR NOT NULL, tool VARCHAR NOT NULL, host VARCHAR NOT NULL, outcome JSON, PRIMARY KEY (session, key))",
    ),
}
