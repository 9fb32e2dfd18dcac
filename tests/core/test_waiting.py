"""Plugins that hang or raise while they are at work: the report names them, and a remedy."""

from __future__ import annotations

import _thread
import signal
import subprocess
import sys
import threading
import time
from unittest.mock import patch

import pytest

from gluon_core import waiting
from gluon_core.compiler.observers import stage_done
from gluon_core.errors import PluginError
from gluon_core.plugin.hookspec import hookimpl
from gluon_core.registry import load as plugins
from gluon_core.registry.load import load
from tests.core.fakes import Plugin, acme, entry

pytestmark = pytest.mark.once


@pytest.fixture
def hears():
    """Ctrl-C, which jobs in the background ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Stuck(Plugin):
    """Hangs in one of its hooks until somebody presses Ctrl-C."""

    def __init__(self, hook, does):
        super().__init__("stuck", acme())
        self.hook, self.does = hook, does
        self.backend = self._backends[0]
        self.backend.device.target = lambda index=0: self.at("device()")

    def at(self, name):
        return self.does() if name == self.hook else None

    @hookimpl
    def gluon_backends(self):
        self.at("gluon_backends()")
        return [self.backend]

    @hookimpl
    def gluon_lowerings(self):
        self.at("gluon_lowerings()")
        return []

    @hookimpl
    def gluon_stage_done(self, stage):
        self.at(f"gluon_stage_done(stage={stage!r})")


def use(plugin):
    registry = load([], [plugin])
    with patch.object(plugins, "_default", registry):
        stage_done("ttgir", object(), registry.target("a1"))
        registry.target("acme")


HOOKS = ("gluon_backends()", "gluon_lowerings()", "gluon_stage_done(stage='ttgir')", "device()")


def hang():
    """As long as nobody interrupts; once `PATIENCE` is over, somebody does."""
    threading.Timer(0.15, _thread.interrupt_main).start()
    for _ in range(1000):
        time.sleep(0.01)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_hangs_is_named(hook, monkeypatch, capsys, hears):
    monkeypatch.setattr(waiting, "PATIENCE", 0.05)
    with pytest.raises(KeyboardInterrupt) as caught:
        use(Stuck(hook, hang))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    for text in (lines[0], str(caught.value)):
        assert "plugin 'stuck'" in text and hook in text and "GLUON_PLUGINS" in text


def test_an_import_that_hangs_is_named(tmp_path, monkeypatch, capsys, hears):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slow_plugin.py").write_text("from tests.core.test_waiting import hang\nhang()\n")
    monkeypatch.setattr(waiting, "PATIENCE", 0.05)
    with pytest.raises(waiting.PluginInterrupted, match=r"'slow' \(slow-dist 1.0\), its import"):
        load([entry("slow", distribution="slow-dist")])
    assert "'slow' (slow-dist 1.0), its import: no answer after" in capsys.readouterr().err


def test_a_hook_that_answers_is_not_named_and_leaves_no_thread(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "PATIENCE", 0.05)
    before = set(threading.enumerate())
    use(Stuck("nothing", hang))
    time.sleep(0.1)
    assert set(threading.enumerate()) <= before and not capsys.readouterr().err


def test_an_observer_that_raises_is_named():
    def fail():
        raise ZeroDivisionError("by zero")

    with pytest.raises(PluginError) as caught:
        use(Stuck("gluon_stage_done(stage='ttgir')", fail))
    for word in ("'stuck'", "gluon_stage_done", "'ttgir'", "by zero", "GLUON_PLUGINS"):
        assert word in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_command_says_which_plugin_it_was_waiting_for(tmp_path):
    (tmp_path / "program.py").write_text(
        "import _thread, time\n"
        "from gluon_core.waiting import Waiting\n"
        "with Waiting(\"'acme'\", 'device()'):\n"
        "    _thread.interrupt_main()\n"
        "    time.sleep(1)\n"
    )
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from gluon_cli import main; main()"
    )
    command = [sys.executable, "-c", code, "run", str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert "waiting for plugin 'acme', device()" in done.stderr.replace("\n", " ")
