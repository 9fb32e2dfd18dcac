"""Gluon for the Acme Anvil: what a hardware vendor writes, and nothing more.

The Anvil is invented: 32 threads to a warp, and a unit that adds and clamps in one instruction.
"""
