"""Proof for every trip count: a kernel's synchronization as a finite automaton, searched whole."""
