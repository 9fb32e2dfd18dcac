"""Keep the results of `gluon tune` in a file, and look them up for launches with `config="tuned"`."""

from __future__ import annotations

from gluon_tune.tuned.store import Key, Store, Trial, default_path, versions

__all__ = ["Key", "Store", "Trial", "default_path", "versions"]
