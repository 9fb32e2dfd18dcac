"""What `gluon tune` found, kept in a file, and looked up by launches with `config="tuned"`."""

from __future__ import annotations

from gluon_tune.tuned.store import Key, Store, Trial, default_path, versions

__all__ = ["Key", "Store", "Trial", "default_path", "versions"]
