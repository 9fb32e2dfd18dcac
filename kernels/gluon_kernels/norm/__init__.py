"""Softmax, norms and losses of rows."""
