"""The search over kernels of one operator: tree, strategies, policies."""

from __future__ import annotations

from forge_tui.engine.search.band import Band
from forge_tui.engine.search.policy import Move, Policy
from forge_tui.engine.search.simple import Beam, Evolve, Greedy, Linear, RoundRobin
from forge_tui.engine.search.tree import Node, Tree
from forge_tui.engine.search.uct import Uct
from forge_tui.errors import ProjectError

__all__ = ["POLICIES", "Move", "Node", "Policy", "Tree", "open_policy"]

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (Uct, Band, Greedy, Beam, Linear, RoundRobin, Evolve)
}


def open_policy(name: str, seed: int) -> Policy:
    """Raises ProjectError naming the policies there are."""
    if name in POLICIES:
        return POLICIES[name](seed)
    known = ", ".join(sorted(POLICIES))
    raise ProjectError(f"there is no policy `{name}`", where="--policy", cure=f"use one of: {known}")
