"""Reports on kernels and installations: `gluon report`, `demo`, `doctor` and `new`."""
