"""Forge TUI: make an unmodified PyTorch model faster with CUDA kernels that are proved right and timed honestly."""

__version__ = "0.1.0"
