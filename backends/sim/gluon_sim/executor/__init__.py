"""The executor of recorded programs: compiled to steps, batched, scheduled."""
