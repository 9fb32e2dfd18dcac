"""The semantics of instructions, by family: tables of functions over all waves and lanes at once."""
