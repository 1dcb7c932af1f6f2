"""What `forge-tui show` prints: one operator with its candidates, one candidate with its verdict; for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from forge_tui.cuda.profile import Profile
from forge_tui.engine.cards import OperatorFile, Variant
from forge_tui.engine.judge.verdict import Verdict, eager_off
from forge_tui.engine.search.tree import Node, Tree
from forge_tui.engine.selection import matches
from forge_tui.engine.state import RunState
from forge_tui.errors import ProjectError
from forge_tui.specs import Call, Dtype, Items, Opaque, TensorSpec, Value, short_name
from forge_tui.store.kernels import load_kernel
from forge_tui.store.paths import ProjectPaths

SCHEMA_VERSION = 1


class Candidate(Struct, frozen=True):
    """One candidate in the list of an operator."""

    node: str
    number: int
    parent: str | None
    strategy: str
    provider: str
    idea: str
    outcome: str
    us: float | None
    value: float | None
    """log speed-up over the baseline."""
    sentence: str
    kernel: str | None


class OperatorView(Struct, frozen=True):
    """`show DIR OPERATOR --json`."""

    schema_version: int
    variant: Variant
    share: float
    status: str
    reason: str
    best: str | None
    candidates: tuple[Candidate, ...]


class CandidateView(Struct, frozen=True):
    """`show DIR OPERATOR NODE --json`."""

    schema_version: int
    candidate: Candidate
    verdict: Verdict | None
    text: str | None
    """The kernel file."""


def find_variant(cards: OperatorFile, wanted: str) -> Variant:
    """The one variant that a pattern (as `--ops` takes) names. Raises ProjectError when none or several fit."""
    found = [variant for variant in cards.variants if matches(variant, wanted)]
    if len(found) == 1:
        return found[0]
    if not found:
        names = sorted({variant.operator for variant in cards.variants})
        raise ProjectError("no captured operator fits", where=wanted, cure=f"there are {', '.join(names)}" if names else
                           "the capture found no operators: look at the model's inputs")
    listed = "\n".join(f"    {variant.key}  {signature(variant.call)}" for variant in found)
    raise ProjectError(f"{len(found)} variants fit", where=wanted, cure=f"name one by its key:\n{listed}")


def find_node(tree: Tree | None, wanted: str, variant: str) -> Node:
    """By number, `best`, or full name. Raises ProjectError."""
    if tree is None or not tree.nodes:
        raise ProjectError("nothing was tried on this operator yet", where=variant, cure="forge-tui --run DIR")
    if wanted == "best":
        if tree.best is None:
            raise ProjectError("no candidate is verified", where=variant, cure="`show DIR OPERATOR` lists what was tried")
        return tree.best
    for node in tree.nodes.values():
        if wanted in (str(node.number), node.id):
            return node
    raise ProjectError(f"there is no candidate {wanted}", where=variant,
                       cure=f"there are 1 to {len(tree.nodes)}, and `best`")


def operator_view(cards: OperatorFile, state: RunState, variant: Variant) -> OperatorView:
    """Candidates in order of proposal."""
    operator = state.operators.get(variant.key)
    nodes: Iterable[Node] = operator.tree.nodes.values() if operator else ()
    done = operator.done if operator else None
    best = operator.tree.best if operator else None
    return OperatorView(
        SCHEMA_VERSION, variant, cards.share(variant),
        done.status if done else "pending" if variant.offered else "skipped", done.reason if done else variant.reason,
        best.id if best else None, tuple(_candidate(node) for node in nodes))


def candidate_view(paths: ProjectPaths, node: Node) -> CandidateView:
    """Raises ProjectError when the kernel file is gone."""
    text = load_kernel(paths, node.kernel) if node.kernel else None
    return CandidateView(SCHEMA_VERSION, _candidate(node), node.verdict, text)


def _candidate(node: Node) -> Candidate:
    replied, verdict = node.replied, node.verdict
    sentence = verdict.sentence if verdict else replied.problem if replied else ""
    parent = node.parent.id if node.parent and node.parent.id else None
    return Candidate(node.id, node.number, parent, node.strategy, node.provider, replied.idea if replied else "",
                     node.outcome, node.us, node.value, sentence, node.kernel)


def render_operator(view: OperatorView, time_kind: str) -> str:
    """A card and a line for each candidate."""
    variant = view.variant
    lines = [
        f"{variant.key}  {signature(variant.call)}",
        f"  {variant.calls} calls per forward, {view.share:.1%} of operator time; {variant.time_us:.1f} us a call "
        f"({'GPU' if time_kind == 'device' else 'CPU'} time), floor {variant.floor_us:.1f} us",
        f"  {variant.bytes_moved} bytes moved, {variant.operations} operations, {len(variant.samples)} samples kept",
        f"  called by {_some(variant.modules)}",
        f"  {view.status}{': ' + view.reason if view.reason else ''}",
    ]
    if view.candidates:
        lines += ["", "  NODE  OUTCOME    TIME        STRATEGY         FROM  WHAT"]
    for item in view.candidates:
        mark = "*" if item.node == view.best else " "
        time = f"{item.us:.2f} us" if item.us is not None else "-"
        parent = item.parent.rpartition("/")[2] if item.parent else "-"
        lines.append(f"{mark} {item.number:>4}  {item.outcome:<9}  {time:<10}  {item.strategy:<15}  {parent:<4}  "
                     f"{item.idea if item.outcome == 'verified' and item.idea else item.sentence}")
    return "\n".join(lines)


def render_candidate(view: CandidateView) -> str:
    """The verdict, what was checked, and the kernel file."""
    candidate, verdict = view.candidate, view.verdict
    lines = [f"{candidate.node}  {candidate.outcome}", f"  {candidate.sentence}" if candidate.sentence else "",
             f"  idea: {candidate.idea}" if candidate.idea else ""]
    if verdict:
        lines += render_verdict(verdict)
    if view.text is not None:
        lines += ["", f"// kernels/{candidate.kernel}.cu", view.text.rstrip("\n")]
    return "\n".join(line for index, line in enumerate(lines) if line or index > 2)


def render_verdict(verdict: Verdict) -> list[str]:
    """Settings, time, checks and the worst element, a line each."""
    lines = []
    if verdict.settings:
        lines.append("  settings: " + ", ".join(f"{name} = {value}" for name, value in verdict.settings.items()))
    if verdict.timing:
        timing = verdict.timing
        speedup = f", {timing.speedup:.2f}x {timing.baseline}" if timing.speedup is not None else ""
        lines.append(f"  time: {timing.us:.2f} us a call ({timing.kind}){speedup}")
    if verdict.profile:
        lines += render_profile(verdict.profile)
    if verdict.proxy:
        lines.append(f"  run on a smaller call: {verdict.proxy}")
    if off := eager_off(verdict):
        lines.append(f"  {off}")
    for check in verdict.checks:
        figure = f" {check.figure:.3g}" if check.figure is not None else ""
        allowed = f" (allowed {check.allowed:.3g})" if check.allowed is not None else ""
        detail = f"  {check.detail}" if check.detail and check.detail not in verdict.sentence else ""
        lines.append(f"  {'passed' if check.passed else 'FAILED'}  {check.name}{figure}{allowed}{detail}")
    if verdict.worst:
        worst = verdict.worst
        lines.append(f"  worst: {worst.output}{list(worst.index)} is {worst.got:g}, expected {worst.expected:g}, "
                     f"allowed difference {worst.allowed:.3g}")
    if verdict.build_log and not verdict.verified:
        lines += ["  compiler:", *(f"    {line}" for line in verdict.build_log.splitlines())]
    return lines


def render_profile(profile: Profile) -> list[str]:
    """A line for each launch, and why the profiler did not look where it did not."""
    lines = []
    if profile.ceiling_share is not None:
        lines.append(f"  moves its bytes at {profile.ceiling_share:.0%} of the device's copy bandwidth")
    for kernel in profile.kernels:
        figures = [f"{words} {value:.0f}%" for words, value in (
            ("SM", kernel.sm_percent), ("DRAM", kernel.dram_percent), ("L2", kernel.l2_percent),
            ("occupancy", kernel.occupancy_percent)) if value is not None]
        figures += [f"{kernel.registers} registers"] if kernel.registers is not None else []
        stalls = ", ".join(f"{reason} {value:.1f}" for reason, value in kernel.stalls)
        lines.append(f"  {kernel.kernel}: {', '.join(figures)}" + (f"; warps wait for {stalls}" if stalls else ""))
    if profile.source == "image":
        lines.append(f"  occupancy is theoretical, nothing was profiled: {profile.note}")
    return lines


def signature(call: Call) -> str:
    """`torch.nn.functional.softmax(input: float32[8, 12, 64, 64], dim=-1)`."""
    parts = []
    for name, value in call.arguments.items():
        if value is not None:
            parts.append(f"{name}: {_text(value)}" if isinstance(value, TensorSpec) else f"{name}={_text(value)}")
    return f"{call.operator}({', '.join(parts)})"


def _text(value: Value) -> str:
    if isinstance(value, TensorSpec):
        layout = "" if value.contiguous else f" strides {list(value.stride)}"
        return f"{value.dtype}{list(value.shape)}{layout}"
    if isinstance(value, Items):
        return f"[{', '.join(_text(item) for item in value.items)}]"
    if isinstance(value, Dtype):
        return value.name
    return value.text if isinstance(value, Opaque) else repr(value)


def _some(names: tuple[str, ...], most: int = 3) -> str:
    shown = ", ".join(name or "the model itself" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def render_cards(cards: OperatorFile) -> str:
    """What a capture found: the model, then a line for each variant, those that no kernel may replace by reason."""
    kind = "GPU" if cards.time_kind == "device" else "CPU"
    lines = [cards.model, f"one forward: {cards.forward_us / 1e3:.2f} ms ({kind}{', launch-bound' * cards.launch_bound})", "",
             f"{'VARIANT':<12}  {'CALLS':>5}  {kind + ' TIME':>10}  {'SHARE':>6}  OPERATOR"]
    counted = cards.counted()
    for variant in cards.variants:
        if variant.offered:
            lines.append(f"{variant.key:<12}  {variant.calls:>5}  {variant.time_us:>7.1f} us  {counted[variant.key]:>6.1%}  "
                         f"{signature(variant.call)}")
    reasons: dict[str, list[str]] = {}
    for item in [*(variant for variant in cards.variants if not variant.offered), *cards.skipped]:
        name = short_name(item.operator)
        reasons.setdefault(item.reason, []).append(f"{name} x{item.calls}" if item.calls > 1 else name)
    lines += ["", "not open to a kernel:"] if reasons else []
    lines += [f"  {reason}: {', '.join(dict.fromkeys(names))}" for reason, names in reasons.items()]
    return "\n".join(lines)
