"""`gluon_core.acme`: host-side types of the Anvil."""
