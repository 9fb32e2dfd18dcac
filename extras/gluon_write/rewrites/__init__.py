"""Rewrites of a kernel, each with one reason, before its loops get a form."""
