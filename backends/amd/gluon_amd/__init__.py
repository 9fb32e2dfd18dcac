"""Gluon for AMD GPUs: the plugin `amd` of Gluon Core."""
