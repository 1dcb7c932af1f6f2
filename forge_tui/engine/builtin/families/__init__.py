"""Families of builtin kernels, one module each; importing this package registers them all."""

from __future__ import annotations

from forge_tui.engine.builtin.families import arithmetic, batch_norm, convolution, elementwise, gather, norm_regions, padding, pooling, rotary, rows  # noqa: F401
