"""The database and its one writer thread; commits are grouped behind the commit in flight, never by a timer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError

from ..types.errors import StoreError
from .prepared import driver_of
from .schema import LOST, migrate
from .wal import is_damaged

T = TypeVar("T")

_BATCH = 256
_BUSY_MS = 15_000
_FAULTS = (DatabaseError, sqlite3.Error)  # of the database, as SQLAlchemy tells them and as its driver does


@dataclass(slots=True)
class _Job:
    """What a caller wants done, and the future of the caller's loop that waits for it."""

    run: Callable[[Connection], Any]
    durable: bool
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]


_Outcome = tuple[_Job, Any, BaseException | None]


class Store:
    """Give it functions of a connection: `write` runs them in the writer thread, in order, each whole or not at all;
    `read` in a reader thread. ``durable`` writes are on the disk (fsync) when their future resolves."""

    def __init__(self, engine: Engine, where: str) -> None:
        self._engine = engine
        self._where = where
        self._writes: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
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
            try:
                with engine.connect() as conn, _transaction(conn, writing=True):
                    migrate(conn, make=make)
            except BaseException:
                engine.dispose()
                raise
        except StoreError as error:
            raise StoreError(f"Cannot use the store {path}: {error}. Nothing was changed.") from None
        except (OSError, *_FAULTS, ValueError) as error:
            raise StoreError(f"Cannot use the store {path}: {_reason(error)}. Nothing was changed.") from None
        return cls(engine, path)

    def write(self, job: Callable[[Connection], T], *, durable: bool = False) -> asyncio.Future[T]:
        """Queue a write; await the future for its value. Errors of the job are its own and undo only it."""
        return self._submit(self._writes, job, durable)

    def read(self, job: Callable[[Connection], T]) -> asyncio.Future[T]:
        """Run a query in the reader thread."""
        return self._submit(self._reads, job, False)

    def _submit(
        self, jobs: queue.SimpleQueue[_Job | None], job: Callable[[Connection], T], durable: bool
    ) -> asyncio.Future[T]:
        if self._closed:
            raise StoreError(f"The store {self._where} is closed.")
        if self._pid != os.getpid():  # its threads stayed with the parent
            raise StoreError(f"The store {self._where} was opened before this process was forked; open it anew here.")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        jobs.put(_Job(job, durable, loop, done))
        return done

    def close(self) -> None:
        """Finish what is queued and close."""
        if not self._closed:
            self._closed = True
            self._writes.put(None)
            self._reads.put(None)
            for thread in self._threads:
                thread.join(10)
            late = [*_rest(self._writes), *_rest(self._reads)]  # put in while it was being closed
            _tell([(job, None, StoreError(f"The store {self._where} is closed.")) for job in late])
            self._engine.dispose()

    def _write_loop(self) -> None:
        conn: Connection | None = None
        full: bool | None = None
        while batch := _next(self._writes):
            try:
                if conn is None:
                    conn, full = self._engine.connect(), None
                durable = any(job.durable for job in batch)
                if durable is not full:
                    _synchronous(conn, durable)
                    full = durable
                outcomes = _transact(conn, batch)
            except BaseException as error:
                failure = self._failure(error)
                outcomes = [(job, None, failure) for job in batch]
                _drop(conn)
                conn = None
            _tell(outcomes)
        if conn is not None:
            conn.close()

    def _read_loop(self) -> None:
        conn: Connection | None = None
        while (job := self._reads.get()) is not None:
            if job.done.cancelled():
                continue
            try:
                if conn is None:
                    conn = self._engine.connect()
                with _transaction(conn, writing=False):
                    outcome: _Outcome = (job, job.run(conn), None)
            except BaseException as error:
                outcome = (job, None, self._failure(error))
                _drop(conn)
                conn = None
            _tell([outcome])
        if conn is not None:
            conn.close()

    def _failure(self, error: BaseException) -> BaseException:
        if isinstance(error, (*_FAULTS, OSError)):
            return StoreError(f"The store {self._where} failed: {_reason(error)}.")
        return error


def _next(jobs: queue.SimpleQueue[_Job | None]) -> list[_Job]:
    """What waits, at least one; nothing when the queue ends."""
    first = jobs.get()
    if first is None:
        return []
    batch = [first]
    while len(batch) < _BATCH:
        try:
            more = jobs.get_nowait()
        except queue.Empty:
            break
        if more is None:
            jobs.put(None)
            break
        batch.append(more)
    return batch


def _rest(jobs: queue.SimpleQueue[_Job | None]) -> list[_Job]:
    """What nobody will take any more."""
    rest: list[_Job] = []
    with contextlib.suppress(queue.Empty):
        while True:
            if (job := jobs.get_nowait()) is not None:
                rest.append(job)
    return rest


def _transact(conn: Connection, batch: Sequence[_Job]) -> list[_Outcome]:
    """All of them in one transaction. One that raises undoes only itself."""
    outcomes: list[_Outcome] = []
    driver = driver_of(conn)
    with _transaction(conn, writing=True):
        for job in batch:
            if job.done.cancelled():
                continue  # nobody waits for it any more, and it has not begun
            driver.execute("SAVEPOINT job")
            try:
                outcomes.append((job, job.run(conn), None))
            except _FAULTS:
                raise
            except Exception as error:  # a decision of the job; the database is well
                outcomes.append((job, None, error))
                driver.execute("ROLLBACK TO job")
            driver.execute("RELEASE job")
    return outcomes


def _tell(outcomes: Sequence[_Outcome]) -> None:
    """Tell those who wait, of each loop all at once: waking a loop costs more than what it is told."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].loop, []).append(outcome)
    for loop, told in by_loop.items():
        with contextlib.suppress(RuntimeError):  # it is closed: nobody waits there any more
            loop.call_soon_threadsafe(_resolve, told)


def _resolve(outcomes: Sequence[_Outcome]) -> None:
    for job, value, problem in outcomes:
        if job.done.done():
            continue  # cancelled meanwhile
        if isinstance(problem, StopIteration):  # it would end the coroutine that waits, so futures refuse it
            raised, problem = problem, RuntimeError(f"A job of the store raised {problem!r}.")
            problem.__cause__ = raised
        if problem is not None:
            job.done.set_exception(problem)
        else:
            job.done.set_result(value)


def _drop(conn: Connection | None) -> None:
    """After a failure: the next job begins with a new connection."""
    with contextlib.suppress(Exception):
        if conn is not None:
            conn.invalidate()
            conn.close()


# ---- what only SQLite has -------------------------------------------------------------------------------------------


def _sqlite(path: str) -> Engine:
    connect_args = {"check_same_thread": False, "timeout": _BUSY_MS / 1000}
    # SQLAlchemy begins and ends nothing: transactions are those of `_transaction`.
    engine = create_engine(f"sqlite:///{path}", connect_args=connect_args, isolation_level="AUTOCOMMIT")

    @event.listens_for(engine, "connect")
    def _connect(dbapi: sqlite3.Connection, _: Any) -> None:
        cursor = dbapi.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    return engine


@contextlib.contextmanager
def _transaction(conn: Connection, *, writing: bool) -> Iterator[None]:
    """All or nothing of what is done on the connection; straight to the driver, which takes a tenth of the time."""
    driver = driver_of(conn)
    # A writer takes the lock at once: two that both read first and write later would end in SQLITE_BUSY.
    driver.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
    try:
        yield
    except BaseException:
        driver.rollback()
        raise
    driver.commit()


def _synchronous(conn: Connection, full: bool) -> None:
    # SQLite takes it only between transactions. In WAL mode a FULL commit also syncs all that NORMAL ones wrote before it.
    driver_of(conn).execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")


def _reason(error: BaseException) -> str:
    said = str(error.orig) if isinstance(error, DatabaseError) else str(error)
    if isinstance(error, _FAULTS) and "full" in said:
        return "the disk is full. Make room and call again; what was accepted goes on by itself"
    if isinstance(error, _FAULTS) and "locked" in said:
        return f"{said}: somebody else writes to it, and has not let go for {_BUSY_MS / 1000:g} s"
    return said
