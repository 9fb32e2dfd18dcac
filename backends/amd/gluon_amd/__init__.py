"""Gluon Core's plugin for AMD GPUs."""
