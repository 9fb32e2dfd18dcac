"""Pipelined loops: loads and copies run steps ahead of the products that read them."""
