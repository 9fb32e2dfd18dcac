"""Programs at work: compiled to steps, batched, scheduled."""
