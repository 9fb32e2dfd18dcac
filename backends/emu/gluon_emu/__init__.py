"""AMD machine code on a CPU: the plugin `gluon-emu`."""
