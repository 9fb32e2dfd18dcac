"""What backends that execute kernels on a CPU share: settings, findings, evidence, host memory."""
