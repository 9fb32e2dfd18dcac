"""Litmus tests of PTX's memory model: every execution that the axioms allow (PTX ISA, chapter 8)."""
