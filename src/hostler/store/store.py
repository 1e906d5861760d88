"""The database and its one writer thread; commits are grouped behind the commit in flight, never by a timer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, OperationalError

from ..types.errors import StoreError
from .schema import LOST, migrate
from .wal import is_damaged

T = TypeVar("T")
Job = Callable[[Connection], Any]

_BATCH = 256
_BUSY_MS = 15_000


@dataclass(slots=True)
class _Write:
    job: Job
    durable: bool
    done: Future[Any]


class Store:
    """Give it functions of a connection: `write` runs them in the writer thread, in order, each whole or not at all;
    `read` in a reader thread. ``durable`` writes are on the disk (fsync) when their future resolves."""

    def __init__(self, engine: Engine, where: str) -> None:
        self._engine = engine
        self._where = where
        self._writes: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._write_loop, name="hostler-store-writer", daemon=True),
            threading.Thread(target=self._read_loop, name="hostler-store-reader", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._closed = False
        self._pid = os.getpid()

    @classmethod
    def open(cls, path: str, *, make: bool = True) -> Store:
        """Open or make the SQLite database at ``path``; with ``make=False`` one that holds nothing is not filled. Raises
        StoreError; the file is left as it was."""
        try:
            if is_damaged(path + "-wal"):
                raise StoreError(
                    f"its log {path}-wal is damaged, and with it what was written last. Put both files back from a copy, or "
                    "remove the log to go on with what the store holds without it"
                )
            if not make and (not os.path.exists(path) or not os.path.getsize(path)):
                raise StoreError(LOST)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            engine = _sqlite(path)
            with engine.begin() as conn:
                migrate(conn, make=make)
        except StoreError as error:
            raise StoreError(f"Cannot use the store {path}: {error}. Nothing was changed.") from None
        except (OSError, DatabaseError, ValueError) as error:
            raise StoreError(f"Cannot use the store {path}: {_reason(error)}. Nothing was changed.") from None
        return cls(engine, path)

    def write(self, job: Callable[[Connection], T], *, durable: bool = False) -> asyncio.Future[T]:
        """Queue a write; await the future for its value. Errors of the job are its own and undo only it."""
        return self._submit(self._writes, job, durable)

    def read(self, job: Callable[[Connection], T]) -> asyncio.Future[T]:
        """Run a query in the reader thread."""
        return self._submit(self._reads, job, False)

    def _submit(
        self, jobs: queue.SimpleQueue[_Write | None], job: Callable[[Connection], T], durable: bool
    ) -> asyncio.Future[T]:
        if self._closed:
            raise StoreError(f"The store {self._where} is closed.")
        if self._pid != os.getpid():  # its threads stayed with the parent
            raise StoreError(f"The store {self._where} was opened before this process was forked; open it anew here.")
        done: Future[T] = Future()
        jobs.put(_Write(job, durable, done))
        return asyncio.wrap_future(done)

    def close(self) -> None:
        """Finish what is queued and close."""
        if not self._closed:
            self._closed = True
            self._writes.put(None)
            self._reads.put(None)
            for thread in self._threads:
                thread.join(10)
            self._engine.dispose()

    def _write_loop(self) -> None:
        conn: Connection | None = None
        full: bool | None = None
        while True:
            first = self._writes.get()
            if first is None:
                break
            batch = [first]
            while len(batch) < _BATCH:
                try:
                    more = self._writes.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    self._writes.put(None)
                    break
                batch.append(more)
            outcomes: list[tuple[_Write, Any, BaseException | None]] = []
            try:
                if conn is None:
                    conn, full = self._engine.connect(), None
                durable = any(w.durable for w in batch)
                if durable is not full:
                    _synchronous(conn, durable)
                    full = durable
                outcomes = self._transact(conn, batch)
            except BaseException as error:
                failure = self._failure(error)
                outcomes = [(w, None, failure) for w in batch if not w.done.cancelled()]
                _drop(conn)
                conn = None
            for write, value, problem in outcomes:
                with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
                    if problem is not None:
                        write.done.set_exception(problem)
                    else:
                        write.done.set_result(value)
        if conn is not None:
            conn.close()

    def _transact(self, conn: Connection, batch: list[_Write]) -> list[tuple[_Write, Any, BaseException | None]]:
        outcomes: list[tuple[_Write, Any, BaseException | None]] = []
        with conn.begin() as transaction:
            for write in batch:
                if not write.done.set_running_or_notify_cancel():
                    continue  # nobody waits for it any more, and it has not begun
                savepoint = conn.begin_nested() if len(batch) > 1 else None
                try:
                    outcomes.append((write, write.job(conn), None))
                except DatabaseError:
                    raise
                except Exception as error:  # a decision of the job; the database is well
                    outcomes.append((write, None, error))
                    (savepoint or transaction).rollback()
                else:
                    if savepoint is not None:
                        savepoint.commit()
        return outcomes

    def _read_loop(self) -> None:
        conn: Connection | None = None
        while (read := self._reads.get()) is not None:
            if not read.done.set_running_or_notify_cancel():
                continue
            try:
                if conn is None:
                    conn = self._engine.connect()
                with conn.begin():
                    value = read.job(conn)
            except BaseException as error:
                read.done.set_exception(self._failure(error))
                _drop(conn)
                conn = None
            else:
                read.done.set_result(value)
        if conn is not None:
            conn.close()

    def _failure(self, error: BaseException) -> BaseException:
        if isinstance(error, (DatabaseError, OSError)):
            return StoreError(f"The store {self._where} failed: {_reason(error)}.")
        return error


def _drop(conn: Connection | None) -> None:
    """After a failure: the next job begins with a new connection."""
    with contextlib.suppress(Exception):
        if conn is not None:
            conn.invalidate()
            conn.close()


def _sqlite(path: str) -> Engine:
    engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False, "timeout": _BUSY_MS / 1000})

    @event.listens_for(engine, "connect")
    def _connect(dbapi: sqlite3.Connection, _: Any) -> None:
        dbapi.isolation_level = None  # transactions are SQLAlchemy's, begun below
        cursor = dbapi.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(conn: Connection) -> None:
        # A writer takes the lock at once: two that both read first and write later would end in SQLITE_BUSY.
        conn.exec_driver_sql(
            "BEGIN IMMEDIATE" if threading.current_thread().name != "hostler-store-reader" else "BEGIN"
        )

    return engine


def _synchronous(conn: Connection, full: bool) -> None:
    # Straight to the driver: SQLite takes it only between transactions, and SQLAlchemy would begin one. In WAL mode a
    # FULL commit also syncs all that NORMAL ones wrote before it.
    dbapi: Any = conn.connection.driver_connection
    dbapi.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")


def _reason(error: BaseException) -> str:
    if isinstance(error, OperationalError) and "full" in str(error.orig):
        return "the disk is full. Make room and call again; what was accepted goes on by itself"
    if isinstance(error, DatabaseError):
        return str(error.orig)
    return str(error)
