"""AMD's machine code on a CPU: decoding, instructions, the machine, and the launcher."""
