"""Kernels without layouts: choose the layouts for a target, and write them into the source."""
