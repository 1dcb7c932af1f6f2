"""`replay`: a recorded run as the provider. Same moves, same kernels; only the judging is done again."""

from __future__ import annotations

import threading
from pathlib import Path

from forge_tui.engine.cards import Variant
from forge_tui.engine.providers.base import Ask, Exhausted, Provider, Reply
from forge_tui.engine.search.policy import Move
from forge_tui.engine.search.tree import Node
from forge_tui.engine.state import load_state
from forge_tui.errors import ProjectError
from forge_tui.store.kernels import load_kernel
from forge_tui.store.paths import ProjectPaths


class ReplayProvider(Provider):
    """Gives what another project's journal has, turn by turn; the shipped kernels' turns are left to `builtin`.

    Nothing is paid again: cost 0, tokens 0. Raises ProjectError when the recording has no replies.
    """

    name = "replay"

    def __init__(self, recorded: str | Path) -> None:
        self.paths = ProjectPaths(recorded)
        state = load_state(self.paths)
        self._nodes: dict[str, list[Node]] = {
            key: [node for node in operator.tree.nodes.values() if node.provider != "builtin" and node.replied]
            for key, operator in state.operators.items()}
        if not any(operator.tree.nodes for operator in state.operators.values()):
            raise ProjectError("there is no recorded run to replay", where=str(self.paths.root),
                               cure="write `--provider replay:PROJECT` with a project that was run")

    def propose(self, ask: Ask, cancel: threading.Event) -> Reply:
        node = self._node(ask.variant, ask.turn)
        if node is None:
            raise Exhausted
        source = load_kernel(self.paths, node.kernel) if node.kernel else None
        return Reply(source=source, idea=node.replied.idea, problem=node.replied.problem, cost_usd=0.0, model=node.model)

    def exhausted(self, variant: Variant, turn: int) -> bool:
        return self._node(variant, turn) is None

    def fixed_move(self, variant: Variant, turn: int) -> Move | None:
        node = self._node(variant, turn)
        if node is None:
            return None
        return Move(node.parent.id or None, node.strategy, "repair" if node.origin == "repair" else "search")

    def _node(self, variant: Variant, turn: int) -> Node | None:
        nodes = self._nodes.get(variant.key, [])
        return nodes[turn] if turn < len(nodes) else None
