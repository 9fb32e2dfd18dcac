"""The contract of a plugin: what a vendor implements, and the types that it is written with."""
