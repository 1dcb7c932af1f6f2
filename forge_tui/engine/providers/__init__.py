"""Who writes kernels: language models, local programs, people, recorded runs, and the kernels that ship with Forge."""

from __future__ import annotations

from forge_tui.engine.providers.base import Ask, Cancelled, Exhausted, ParentKernel, Provider, Reply, ReplyPending, Tried

__all__ = ["Ask", "Cancelled", "Exhausted", "ParentKernel", "Provider", "Reply", "ReplyPending", "Tried"]
