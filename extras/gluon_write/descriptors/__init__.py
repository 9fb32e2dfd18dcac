"""Tiles of pointers and of blocks as tiles of tensor descriptors."""
