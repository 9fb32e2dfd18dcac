"""Install hints where plugins are missing: by path, where there is a checkout."""

from __future__ import annotations

import json

from gluon_cli import packages


def elsewhere(monkeypatch, folder, url):
    """The core as it stands in site-packages, installed from `url`."""

    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return url and json.dumps({"url": url})

    monkeypatch.setattr(packages.gluon_core, "__file__", str(folder / "gluon_core" / "__init__.py"))
    monkeypatch.setattr(packages.metadata, "distribution", lambda name: Installed())
    monkeypatch.setattr(packages.metadata, "requires", lambda name: ['gluon-sim; extra == "sim"'])


def test_an_install_knows_the_checkout_that_it_came_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkout = tmp_path / "a checkout"
    (checkout / "backends" / "sim").mkdir(parents=True)
    for project in (checkout, checkout / "backends" / "sim"):
        (project / "pyproject.toml").write_text('[project]\nname = "gluon-sim"\n')
    elsewhere(monkeypatch, tmp_path / "site", checkout.as_uri())
    assert packages.known() == {"gluon-sim": "./a checkout/backends/sim"}


def test_without_one_packages_go_by_their_names(tmp_path, monkeypatch):
    for url in (None, "https://example.com/gluon.whl", (tmp_path / "gone").as_uri()):
        elsewhere(monkeypatch, tmp_path / "site", url)
        assert packages.known() == {"gluon-sim": "gluon-sim"}
