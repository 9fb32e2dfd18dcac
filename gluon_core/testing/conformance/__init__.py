"""Test that a backend conforms: the conformance suite for every backend.

    pytest --pyargs gluon_core.testing.conformance --gluon-backend NAME

It checks the contract's attributes, loads every path the backend names and looks at the object behind
it,
asks a builder for each method, traces portable kernels for every architecture, compiles one, and runs
them in every form of a launch where the backend can run here; where it has no compiler, on the
simulator. Without `--gluon-backend` it tests all that are installed, plugins without a backend included.
"""
