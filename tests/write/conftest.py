"""Fixtures of the tests of `gluon write`."""

import pytest

import gluon_write.explicit


@pytest.fixture
def all_sources(monkeypatch):
    """Collect the sources of the kernels that get layouts, also of forms for short launches."""
    texts = []
    chosen_for = gluon_write.explicit.chosen_for

    def kept(*args):
        graph, solution = chosen_for(*args)
        texts.append("\n".join(jit.src for jit in graph.jits))
        return graph, solution

    monkeypatch.setattr(gluon_write.explicit, "chosen_for", kept)
    return texts


@pytest.fixture
def chosen_sources(all_sources, monkeypatch):
    """Collect the sources of the kernels that get layouts; short launches have no form of their own."""
    monkeypatch.setattr(gluon_write.explicit, "short_launches_of", lambda *args: None)
    return all_sources
