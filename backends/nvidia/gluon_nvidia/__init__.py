"""Gluon for NVIDIA GPUs: the plugin `nvidia` of Gluon Core."""
