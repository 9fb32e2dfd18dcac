"""What kernels store to and wait on: global, shared and tensor memory, copies on their way, barriers."""
