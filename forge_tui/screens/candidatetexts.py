"""The tabs of the kernel bench as lines: everything there is about one candidate, read when it is looked at."""

from __future__ import annotations

from forge_tui.engine.search.tree import Node
from forge_tui.screens.candidate import profile_lines, timing_lines, verdict_lines
from forge_tui.screens.code import highlighted, numbered, side_by_side, unified
from forge_tui.screens.livetext import LiveText
from forge_tui.screens.markdown import rendered
from forge_tui.screens.shapes import shape_lines
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.lines import wrapped
from forge_tui.screens.widgets.paint import Line


AGAINST = ("parent", "best", "builtin", "marked")
"""What a diff may compare with; `builtin`: the best of the kernels that ship with Forge."""
LIVE = ("reasoning", "reply")


class CandidateTexts:
    """Of one operator's candidates; also holds what a diff compares with."""

    def __init__(self, watch: ProjectWatch, variant: str) -> None:
        self.project, self.variant = watch, variant
        self.against = "parent"
        self.marked: str | None = None
        self.unified: bool | None = None
        """None: by the width of the terminal."""
        self._live: LiveText | None = None

    def lines(self, tab: str, node: Node, width: int, flat: bool) -> list[Line]:
        """One tab. flat: whether a diff is unified."""
        if tab == "diff":
            return self._diff_lines(node, width, flat)
        return getattr(self, f"_{tab}_lines")(node, width)

    def _verdict_lines(self, node: Node, width: int) -> list[Line]:
        return verdict_lines(node, self.project.verdict(node), width)

    def _timing_lines(self, node: Node, width: int) -> list[Line]:
        cards = self.project.cards
        first = self.project.judged(node)
        shapes = shape_lines(self.project, node, self.variant)
        return timing_lines(
            self.project.verdict(node),
            first.points if first else (),
            cards.find(self.variant) if cards else None,
            cards,
            width,
            shapes,
        )

    def _profile_lines(self, node: Node, width: int) -> list[Line]:
        return profile_lines(self.project.judged(node), width)

    def _source_lines(self, node: Node, width: int) -> list[Line]:
        text, problem = self.source(node)
        return (
            numbered(highlighted(text), node.verdict.line if node.verdict else None)
            if not problem
            else wrapped(problem, width)
        )

    def _diff_lines(self, node: Node, width: int, flat: bool) -> list[Line]:
        other, name = self._other(node)
        if other is None:
            best = self.project.state.operator(self.variant).best
            first = "this is the best, and it has no parent" if node is best and not (node.parent and node.parent.id) else ""
            what = first if self.against in ("parent", "best") and first else f"no {self.against} to compare with"
            return wrapped(f"{what}: d chooses another, m marks one", width)
        old, problem = self.source(other)
        new, problem_here = self.source(node)
        if problem or problem_here:
            return wrapped(problem or problem_here, width)
        names = f"{name} {other.number}", f"this {node.number}"
        if old == new:
            return wrapped(f"{names[0]} and {names[1]} have the same text", width)
        return unified(old, new, *names) if flat else side_by_side(old, new, *names, width)

    def grows(self, tab: str, node: Node | None) -> bool:
        """Whether a tab shows what is being written now."""
        return tab in LIVE and node is not None and node.replied is None and not node.settled

    def _reasoning_lines(self, node: Node, width: int) -> list[Line]:
        if self.grows("reasoning", node):
            if self._live is None or (self._live.node, self._live.width) != (node.id, width):
                self._live = LiveText(self.project.paths.replies, node.id, width)
            return self._live.more() or wrapped(
                "asked; nothing came yet" if self.project.running else "asked by a run that ended; f asks again",
                width,
                "forge-muted",
            )
        replied = node.replied
        if replied is not None and replied.reasoning_file:
            return self._text_file(replied.reasoning_file, width, "reasoning")
        lines = rendered(replied.idea, width) + [()] if replied is not None and replied.idea else []
        why = (
            "the model showed no reasoning; `reply` has all that it wrote"
            if replied is not None and replied.reply_file
            else "a kernel that ships with Forge or a person's has no reasoning"
        )
        return lines + wrapped(why, width, "forge-muted")

    def _prompt_lines(self, node: Node, width: int) -> list[Line]:
        return self._text_file(node.replied.prompt_file if node.replied else None, width, "prompt")

    def _reply_lines(self, node: Node, width: int) -> list[Line]:
        if self.grows("reply", node):
            return self._reasoning_lines(node, width)
        return self._text_file(node.replied.reply_file if node.replied else None, width, "reply")

    def _build_lines(self, node: Node, width: int) -> list[Line]:
        verdict = self.project.judged(node)
        log = verdict.build_log if verdict else ""
        return wrapped(log, width) if log else wrapped("the compiler said nothing", width)

    def _text_file(self, name: str | None, width: int, what: str) -> list[Line]:
        if name is None:
            return wrapped(f"no {what}: a kernel that ships with Forge or a person's has none", width)
        try:
            return rendered((self.project.paths.replies / name).read_text(errors="replace"), width)
        except OSError as error:
            return wrapped(f"replies/{name} cannot be read: {error.strerror}", width)

    def source(self, node: Node) -> tuple[str, str]:
        """Text, or why there is none."""
        if node.kernel is None:
            return "", "no kernel in the reply" if node.settled else "not written yet"
        try:
            return self.project.paths.kernel(node.kernel).read_text(errors="replace"), ""
        except OSError as error:
            return "", f"kernels/{node.kernel}.cu cannot be read: {error.strerror}"

    def _other(self, node: Node) -> tuple[Node | None, str]:
        if self.against == "best":
            return self.project.state.operator(self.variant).best, "best"
        if self.against == "builtin":
            nodes = self.project.state.operator(self.variant).tree.nodes.values()
            shipped = [item for item in nodes if item.provider == "builtin" and item.kernel and item.id != node.id]
            return max(shipped, key=lambda item: item.value or float("-inf"), default=None), "builtin"
        if self.against == "marked":
            return (self.project.state.node(self.marked) if self.marked else None), "marked"
        if node.parent and node.parent.id:
            return node.parent, "parent"
        best = self.project.state.operator(self.variant).best  # a first idea has no parent: the best is what one looks for
        return (best if best is not node else None), "best"
