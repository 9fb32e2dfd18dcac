"""The file of results: several processes, an end in the middle, other releases, full disks."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import pytest

from gluon_core.errors import TuneError, TuneStoreError, TuneStoreVersionError
from gluon_tune import export
from gluon_tune.tuned import Key, Store, Trial

pytestmark = pytest.mark.once

KEY = Key("k", "nvidia:sm_90", "H200", "x=*fp32, n=1024", "{}", "v", "time")


def test_trials_come_back_as_they_were_put_and_the_best_first(tmp_path):
    with Store(tmp_path / "a" / "s.db") as store:
        slow = Trial({"B": 1, "w": True}, "ok", 2.0, 1.9, 2.1, detail={"registers": 7}, name="f")
        store.add(KEY, slow)
        store.add(KEY, Trial({"B": 2}, "bad", reason="hung"))
        store.add(KEY, Trial({"B": 3}, "ok", 1.0))
        store.add(replace(KEY, device="other"), Trial({"B": 4}, "ok", 0.5))
        rows = store.of(KEY)
        assert [trial.config["B"] for trial in rows] == [3, 1, 2]
        assert replace(rows[1], timestamp=0.0) == slow and rows[1].timestamp > 1e9
        assert store.best(KEY).config == {"B": 3}
        store.add(KEY, Trial({"B": 3}, "bad"))  # in place of the earlier one
        assert store.best(KEY).config["B"] == 1 and len(store.of(KEY)) == 3


WRITER = """
import os, sys, time
from gluon_tune.tuned import Key, Store, Trial
key = Key("k", "t", "d", "b", "{}", "v", "time")
with Store(sys.argv[1]) as store:
    for number in range(int(sys.argv[3])):
        store.add(key, Trial({"who": sys.argv[2], "number": number}, "ok", 1.0))
        print(number, flush=True)
"""


def writer(path, name, count):
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_several_processes_write_at_once_and_one_is_killed(tmp_path):
    path = tmp_path / "s.db"
    first, second, third = (
        writer(path, name, n) for name, n in (("a", 60), ("b", 60), ("c", 10**6))
    )
    for _ in range(20):  # it is in the middle of it
        kept = int(third.stdout.readline())
    third.kill()
    assert first.wait(60) == 0 and second.wait(60) == 0
    third.wait()
    for process in (first, second, third):
        process.stdout.close()
    with Store(path) as store:
        names = [trial.config["who"] for _, trial in store.trials()]
    assert names.count("a") == names.count("b") == 60 and names.count("c") > kept


def test_another_release_wrote_it(tmp_path):
    path = tmp_path / "s.db"
    Store(path).close()
    with sqlite3.connect(path) as base:
        base.execute("pragma user_version=7")
    with pytest.raises(TuneStoreVersionError, match="expected format 2, got format 7"):
        Store(path)


def test_it_is_no_store(tmp_path):
    path = tmp_path / "s.db"
    path.write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(TuneStoreError, match="cannot be opened.*not a database"):
        Store(path)
    with pytest.raises(TuneStoreError, match="cannot be opened"):
        Store(tmp_path / "none.db", readonly=True)
    with sqlite3.connect(tmp_path / "other.db") as base:
        base.execute("create table mine(x)")
    with pytest.raises(TuneStoreVersionError, match="got format 0"):
        Store(tmp_path / "other.db")


def test_a_full_disk_keeps_earlier_entries(tmp_path):
    with Store(tmp_path / "s.db") as store:
        store.add(KEY, Trial({"B": 1}, "ok", 1.0))
        pages = store._base.execute("pragma page_count").fetchone()[0]
        store._base.execute(f"pragma max_page_count={pages}")
        with pytest.raises(TuneStoreError, match="full.*Make room.*kept"):
            for number in range(1000):
                store.add(KEY, Trial({"B": number}, "ok", 1.0, reason="x" * 1000))
        assert {"B": 1} in [trial.config for trial in store.of(KEY)]


def test_stores_of_machines_are_merged(tmp_path):
    with Store(tmp_path / "one.db") as one, Store(tmp_path / "two.db") as two:
        one.add(KEY, Trial({"B": 1}, "ok", 1.0, timestamp=10.0))
        one.add(KEY, Trial({"B": 2}, "ok", 2.0, timestamp=30.0))
        two.add(KEY, Trial({"B": 1}, "ok", 0.5, timestamp=20.0))
        two.add(KEY, Trial({"B": 2}, "ok", 9.0, timestamp=20.0))
        two.add(KEY, Trial({"B": 3}, "ok", 3.0, timestamp=20.0))
        assert one.merge(two) == 2 and one.merge(two) == 0
        assert {t.config["B"]: t.value for t in one.of(KEY)} == {1: 0.5, 2: 2.0, 3: 3.0}


def test_export(tmp_path):
    with Store(tmp_path / "s.db") as store:
        with pytest.raises(TuneError, match="is empty"):
            export.write(store, str(tmp_path / "s.json"))
        store.add(replace(KEY, fixed='{"D": 64}'), Trial({"B": 1}, "ok", 2.0, name="my kernel"))
        store.add(KEY, Trial({"B": 2, "num_warps": 8}, "bad", name="f"))
        store.add(KEY, Trial({"B": 3, "num_warps": 8}, "ok", 1.0, name="f", timestamp=time.time()))
        assert export.write(store, str(tmp_path / "s.json")) == 3
        document = json.loads((tmp_path / "s.json").read_text())
        assert document["format"] == 2 and {t["config"]["B"] for t in document["trials"]} == {
            1,
            2,
            3,
        }
        assert export.write(store, str(tmp_path / "s.py")) == 2
        with pytest.raises(TuneError, match=r"\.json or \.py"):
            export.write(store, str(tmp_path / "s.toml"))
    names: dict = {}
    exec((tmp_path / "s.py").read_text(), names)
    place = ("nvidia:sm_90", "H200", "x=*fp32, n=1024")
    assert names["F"] == {place: {"B": 3, "num_warps": 8}}
    assert names["MY_KERNEL"] == {place: {"D": 64, "B": 1}}
