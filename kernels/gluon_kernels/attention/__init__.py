"""Attention over whole sequences, sequences of any lengths, and pages."""
