"""What the host target is measured on: kernels of the kinds models write, planted faults with near misses, sizes for its speed."""
