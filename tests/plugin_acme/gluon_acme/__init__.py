"""Gluon for the Acme Anvil, invented hardware with a unit that adds and clamps in one instruction."""
