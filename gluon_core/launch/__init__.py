"""Running kernels: the decorator, the specialization of arguments, the launch and the cache."""
