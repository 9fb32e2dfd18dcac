"""The common parts of backends that execute kernels on a CPU: settings, evidence, host memory."""
