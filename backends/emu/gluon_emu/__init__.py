"""Machine code on a CPU: the plugin `gluon-emu`."""
