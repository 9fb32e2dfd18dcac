"""Loops of products and of rows: the tiles that they load, their steps, and the statements between."""
