"""The command `gluon emu`: machine code in a file, with arguments from the command line."""
