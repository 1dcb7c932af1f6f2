"""From a node of the tree to what a provider is asked: parent, siblings, lineage, the most useful first."""

from __future__ import annotations

import tomllib
from typing import Literal

from forge_tui.cuda.device import DeviceFacts
from forge_tui.engine.cards import Variant
from forge_tui.engine.providers.base import Ask, ParentKernel, Tried
from forge_tui.engine.search.tree import Node, Tree
from forge_tui.store.kernels import load_kernel
from forge_tui.store.paths import ProjectPaths


def ask_id(node: str) -> str:
    """`VARIANT/NUMBER` as a file name."""
    return node.replace("/", "-")


def turn_of(tree: Tree, node: Node) -> int:
    """How many earlier nodes of the operator went to the same provider."""
    return sum(other.provider == node.provider and other.number < node.number for other in tree.nodes.values())


def build_ask(paths: ProjectPaths, variant: Variant, tree: Tree, node: Node, device: DeviceFacts,
              time_kind: Literal["device", "modelled"]) -> Ask:
    """The ask for a node that was proposed. Raises ProjectError when the parent's kernel file is missing or was changed."""
    parent = node.parent
    kernel = None
    if parent.kernel is not None and parent.verdict is not None:
        kernel = ParentKernel(parent.id, load_kernel(paths, parent.kernel), parent.verdict, parent.replied.idea)
    return Ask(id=ask_id(node.id), turn=turn_of(tree, node), variant=variant, device=device, time_kind=time_kind,
               strategy=node.strategy, origin=node.origin, parent=kernel, tried=_tried(tree, node), hint="\n".join(parent.hints), llm=node.llm)


def _tried(tree: Tree, node: Node) -> tuple[Tried, ...]:
    """Siblings first (the same start), then the way here, then the rest, latest first; the parent itself is shown whole."""
    siblings = [child for child in node.parent.children if child is not node]
    line = [ancestor for ancestor in node.parent.lineage() if ancestor is not node.parent]
    rest = reversed(tree.nodes.values())
    ordered = dict.fromkeys([*reversed(siblings), *line, *rest])
    return tuple(_line(other) for other in ordered if other is not node and other is not node.parent)


def _line(node: Node) -> Tried:
    if node.verdict is not None:
        sentence = node.verdict.sentence
    else:
        sentence = node.replied.problem if node.replied else "being tried now"
    idea = node.replied.idea if node.replied else ""
    return Tried(node.id, node.strategy, idea, node.outcome, sentence, node.us)


def plan_of(source: str) -> object:
    """A kernel file's launch plan without its comments and layout, for comparison; the raw text where it is no TOML."""
    text = source.partition("/*forge")[2].partition("*/")[0]
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return text
