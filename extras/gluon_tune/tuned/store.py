"""Keep every configuration that was ever tried, with its result, in a file.

SQLite with a write-ahead log: several processes of one machine read and write it at once, each trial
is a transaction of its own, and one that ends in the middle loses the trial it was at. Files of
several machines are merged, see `Store.merge`; a file system of a network is no place for one.
"""

from __future__ import annotations

import functools
import json
import os
import sqlite3
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, Optional, Union

from gluon_tune.errors import TuneStoreError, TuneStoreVersionError

__all__ = ["FORMAT", "Key", "Store", "Trial", "default_path", "is_plain", "plain_text", "versions"]

FORMAT = 2  # of the tables; in the file as its user_version

# Objectives in the order in which a launch trusts them: measurements go before counts.
OBJECTIVES = ("time", "predicted", "roofline", "instructions", "registers")

_BUSY = 30.0  # seconds to wait for another process that writes

_TABLE = """
create table if not exists trial(
    kernel text, target text, device text, bucket text, fixed text, versions text, objective text,
    config text, name text, status text, value real, low real, high real, reason text, detail text,
    shape text, timestamp real,
    primary key (kernel, target, device, bucket, fixed, versions, objective, config)
)
"""


def default_path() -> Path:
    """`GLUON_TUNE_STORE`; `~/.gluon/tuned.db` unless set."""
    return Path(os.environ.get("GLUON_TUNE_STORE") or Path.home() / ".gluon" / "tuned.db")


@functools.cache
def versions() -> str:
    """Return the releases that made the code: a measurement holds for them, its kernel and its device."""
    releases = []
    for name in (
        "gluon-core",
        "triton",
    ):  # asked of the metadata: who keeps results needs no compiler
        try:
            releases.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            releases.append(f"{name} of a folder")
    return ", ".join(releases)


def is_plain(value: Any) -> bool:
    """Return True if a store keeps `value` itself, and not only its text."""
    return value is None or isinstance(value, (bool, int, float, str))


def plain_text(value: Mapping[str, Any]) -> str:
    """Return a mapping of plain values as text, the same for equal ones."""
    return json.dumps(value, sort_keys=True, default=str)


@dataclass(frozen=True)
class Key:
    """The kernel, device, shape and objective that configurations compete for.

    Args:
        kernel: hash of the kernel's source and of all that it refers to.
        target: such as `nvidia:sm_90`.
        device: as the driver calls it; "" where nothing was measured.
        bucket: types of the arguments, and sizes rounded up to powers of two.
        fixed: constants of the kernel that were not searched, as JSON.
        versions: see `versions`.
        objective: one of `OBJECTIVES`.
    """

    kernel: str
    target: str
    device: str
    bucket: str
    fixed: str
    versions: str
    objective: str


@dataclass(frozen=True)
class Trial:
    """A configuration and its result.

    Args:
        config: constants and options by name.
        status: "ok"; "pruned": not worth a measurement; "failed": it does not compile; "bad": it hung,
            faulted or computed something wrong.
        value: of the objective, less is better; seconds where that is the time.
        low, high: the bounds of its confidence interval.
        reason: why it is not "ok".
        detail: other facts: registers, spills, clocks, ...
        shape: the parameters of `arguments`.
        name: of the kernel.
        timestamp: in seconds of `time.time()`.
    """

    config: Mapping[str, Any]
    status: str
    value: Optional[float] = None
    low: Optional[float] = None
    high: Optional[float] = None
    reason: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    timestamp: float = 0.0


_KEY = [one.name for one in fields(Key)]
_JSON = ("config", "detail", "shape")
_OTHERS = [one.name for one in fields(Trial)]
_COLUMNS = [*_KEY, *_OTHERS]


class Store:
    """A file of trials.

    Args:
        path: of the file; None for `default_path()`.
        readonly: do not make it, and write nothing.

    Raises:
        TuneStoreError: it cannot be opened, or is no store.
        TuneStoreVersionError: another release wrote it.
    """

    def __init__(self, path: Union[str, Path, None] = None, readonly: bool = False):
        self.path = Path(path) if path is not None else default_path()
        self.readonly = readonly
        with self._errors("opened"):
            if readonly:
                uri = f"{self.path.resolve().as_uri()}?mode=ro"
                self._base = sqlite3.connect(uri, timeout=_BUSY, uri=True, check_same_thread=False)
            else:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._base = sqlite3.connect(str(self.path), timeout=_BUSY, check_same_thread=False)
            version = self._version()
            if version == 0 and not readonly:
                self._make()
                version = self._version()
        if version != FORMAT:
            self._base.close()
            raise TuneStoreVersionError(
                f"{self.path} was written by another release",
                expected=f"format {FORMAT}",
                got=f"format {version}",
                remedy="Use another file (--store, GLUON_TUNE_STORE), or the release that wrote it "
                "and its `gluon tune --export`.",
            )

    def _version(self) -> int:
        return int(self._base.execute("pragma user_version").fetchone()[0])

    def _make(self) -> None:
        self._base.execute("pragma journal_mode=wal")
        with self._base:
            self._base.execute("begin immediate")
            tables = self._base.execute("select count(*) from sqlite_master").fetchone()[0]
            if self._version() == 0 and not tables:
                self._base.execute(_TABLE)
                self._base.execute(f"pragma user_version={FORMAT}")

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            full = "full" in str(error) or getattr(error, "errno", 0) == 28
            raise TuneStoreError(
                f"the store {self.path} cannot be {done}: {error}",
                remedy="Make room on the disk and start again: the results so far are kept."
                if full
                else "Name another file with --store or GLUON_TUNE_STORE.",
            ) from None

    def close(self) -> None:
        self._base.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *details: Any) -> None:
        self.close()

    def add(self, key: Key, trial: Trial) -> None:
        """Keep a trial, in place of an earlier one of the same configuration.

        Raises:
            TuneStoreError: the disk is full, or the file cannot be written.
        """
        dated = replace(trial, timestamp=trial.timestamp or time.time())
        self._put([_row(key, dated)])

    def add_all(self, key: Key, trials: Iterable[Trial]) -> None:
        """Keep several at once, or none of them.

        Raises:
            TuneStoreError: as `add`.
        """
        self._put(_row(key, trial) for trial in trials)

    def _put(self, rows: Iterable[tuple[Any, ...]]) -> None:
        marks = ", ".join("?" * len(_COLUMNS))
        order = f"insert or replace into trial({', '.join(_COLUMNS)}) values ({marks})"
        with self._errors("written"), self._base:
            self._base.executemany(order, rows)

    def trials(self, **where: str) -> list[tuple[Key, Trial]]:
        """Return the stored trials, the best first; `where` are fields of `Key`."""
        condition = " and ".join(f"{name} = ?" for name in where) or "1"
        order = "case status when 'ok' then 0 else 1 end, value is null, value, timestamp"
        text = f"select {', '.join(_COLUMNS)} from trial where {condition} order by {order}"
        with self._errors("read"):
            return [_read(row) for row in self._base.execute(text, list(where.values()))]

    def of(self, key: Key) -> list[Trial]:
        """Return the trials for one key, the best first."""
        return [trial for _, trial in self.trials(**asdict(key))]

    def best(self, key: Key) -> Optional[Trial]:
        """Return the best trial that is "ok"."""
        best = self.of(key)
        return best[0] if best and best[0].status == "ok" else None

    def merge(self, other: Store) -> int:
        """Merge the trials of another store, keeping the later one of each configuration; return how many."""
        mine = {(key, plain_text(trial.config)): trial.timestamp for key, trial in self.trials()}
        theirs = [
            (key, trial)
            for key, trial in other.trials()
            if trial.timestamp > mine.get((key, plain_text(trial.config)), 0.0)
        ]
        self._put(_row(key, trial) for key, trial in theirs)
        return len(theirs)

    def document(self) -> dict[str, Any]:
        """Return all of it as plain data, for JSON."""
        entries = [{**asdict(key), **asdict(trial)} for key, trial in self.trials()]
        return {"format": FORMAT, "trials": entries}


def _row(key: Key, trial: Trial) -> tuple[Any, ...]:
    values = {**vars(key), **vars(trial)}
    for name in _JSON:
        values[name] = plain_text(values[name])
    return tuple(values[name] for name in _COLUMNS)


def _read(row: tuple[Any, ...]) -> tuple[Key, Trial]:
    values = dict(zip(_COLUMNS, row))
    for name in _JSON:
        values[name] = json.loads(values[name])
    return Key(**{n: values[n] for n in _KEY}), Trial(**{n: values[n] for n in _OTHERS})
