"""Fixtures of the tests of `gluon write`."""

import pytest

import gluon_write.explicit


@pytest.fixture
def chosen_sources(monkeypatch):
    """Collect the sources of the kernels that get layouts."""
    texts = []
    chosen_for = gluon_write.explicit.chosen_for

    def kept(*args):
        graph, solution = chosen_for(*args)
        texts.append("\n".join(jit.src for jit in graph.jits))
        return graph, solution

    monkeypatch.setattr(gluon_write.explicit, "chosen_for", kept)
    return texts
