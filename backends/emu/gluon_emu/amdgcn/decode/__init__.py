"""From the text of a code object to instructions, a kernel descriptor and its arguments."""
