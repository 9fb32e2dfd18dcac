"""The conformance suite: what every backend must do.

    pytest --pyargs gluon_core.testing.conformance --gluon-backend NAME

It checks the contract's attributes, traces portable kernels for every architecture, compiles one,
runs them where the backend can run here, and resolves every path the backend names. Without
`--gluon-backend` it tests all that are installed.
"""
