"""The search over kernels of one operator: tree, strategies, policies."""

from __future__ import annotations

from forge_tui.engine.search.policy import Move, Policy
from forge_tui.engine.search.simple import Greedy, RoundRobin
from forge_tui.engine.search.tree import Node, Tree
from forge_tui.engine.search.uct import Uct
from forge_tui.errors import ProjectError

__all__ = ["POLICIES", "Move", "Node", "Policy", "Tree", "open_policy"]

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Uct, Greedy, RoundRobin)}

PLANNED = ("band", "beam", "linear", "evolve")
"""Names of the command line that this version does not have yet."""


def open_policy(name: str, seed: int) -> Policy:
    """Raises ProjectError naming the policies there are."""
    if name in POLICIES:
        return POLICIES[name](seed)
    known = ", ".join(sorted(POLICIES))
    message = f"policy `{name}` is not in this version" if name in PLANNED else f"there is no policy `{name}`"
    raise ProjectError(message, where="--policy", cure=f"use one of: {known}")
