"""All that touches a compiler or a device. Knows programs and tensors; knows no engine."""
