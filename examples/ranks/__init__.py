"""Kernels across devices, each with host code that runs on simulated ranks and on GPUs alike."""
