"""What a run came to, for machines (the document) and for people (a table, a line for each event)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from forge_tui.engine import events
from forge_tui.engine.cards import OperatorFile, Variant
from forge_tui.engine.document import SCHEMA_VERSION, Document, OperatorResult
from forge_tui.engine.state import OperatorState, RunState
from forge_tui.store.paths import ProjectPaths

RunStatus = Literal["done", "limit", "waiting", "interrupted", "failed"]


def document(paths: ProjectPaths, cards: OperatorFile | None, state: RunState, *, status: RunStatus | None = None,
             error: str | None = None, elapsed_s: float | None = None) -> Document:
    """The result as it stands. status, error, elapsed_s: of the run that just ended; left out, they come from the journal
    (a run that goes on, or was killed, counts as interrupted)."""
    ended = state.ended
    if status is None:
        status = ended.status if ended else "interrupted"
        error = ended.reason if ended and ended.status == "failed" else None
    on_host = state.run.target == "host" if state.run else cards is None or cards.time_kind == "cpu"
    packaged = state.packaged
    return Document(
        schema_version=SCHEMA_VERSION, status=status, project=str(paths.root),
        device=(cards.device.name if cards else "") if on_host else (state.run.device if state.run else ""),
        time_kind="modelled" if on_host else "device",
        elapsed_s=round(state.elapsed_s if elapsed_s is None else elapsed_s, 3), cost_usd=state.cost_usd,
        tokens=state.tokens, package=packaged.path if packaged else None, error=error,
        operators=tuple(_result(cards, variant, state) for variant in cards.variants) if cards else ())


def _result(cards: OperatorFile, variant: Variant, state: RunState) -> OperatorResult:
    operator = state.operators.get(variant.key)
    best = operator.tree.best if operator else None
    timing = best.verdict.timing if best else None
    status, reason = _status(variant, operator, state)
    baseline = timing.baseline_us if timing else None
    if baseline is None and cards.time_kind == "device":
        baseline = variant.time_us
    return OperatorResult(
        operator=variant.operator, variant=variant.key, calls=variant.calls, share=round(cards.share(variant), 6),
        baseline_us=baseline, baseline=(timing.baseline if timing and timing.baseline else "eager") if baseline else None,
        floor_us=variant.floor_us, best_us=timing.us if timing else None, speedup=timing.speedup if timing else None,
        interval=timing.speedup_interval if timing else None, status=status, reason=reason,
        tried=operator.tried if operator else 0, verified=operator.verified if operator else 0,
        best_kernel=best.kernel if best else None)


def _status(variant: Variant, operator: OperatorState | None,
            state: RunState) -> tuple[Literal["won", "no_gain", "failed", "skipped", "pending", "verified"], str]:
    if operator is not None and operator.done is not None:
        return operator.done.status, operator.done.reason
    if not variant.offered:
        return "skipped", variant.reason
    if operator is None or variant.key not in state.selected and not operator.tree.nodes:
        return "skipped", "not selected" if state.selected else "not worked on yet"
    if state.ended is not None:
        return "pending", state.ended.reason
    return "pending", "in progress"


def short_name(operator: str) -> str:
    """`torch.nn.functional.softmax` -> `softmax`, `torch.Tensor.add_` -> `add_`."""
    return operator.rpartition(".")[2]


def render_table(result: Document, width: int = 80) -> str:
    """The document for people: plain text, nothing told by colour, at most `width` columns (80 at least)."""
    width = max(width, 80)
    modelled = result.time_kind == "modelled"
    lines = _head(result)
    shown = [item for item in result.operators if item.status != "skipped" or item.tried]
    if shown:
        name_width = min(max(len(_name(item)) for item in shown), width - 58)
        lines += ["", _row("operator", "calls", "baseline", "modelled" if modelled else "best", "speed-up", "tried", "status",
                           name_width)]
        for item in shown:
            lines.append(_row(
                _name(item), str(item.calls), _time(item.baseline_us), _time(item.best_us), _speedup(item),
                f"{item.verified}/{item.tried}", item.status.replace("_", " "), name_width))
            if item.status in ("failed", "pending", "no_gain") and item.reason:
                lines += _wrapped(item.reason, width)
    skipped = [item for item in result.operators if item not in shown]
    if skipped:
        lines += ["", *_skipped(skipped, width)]
    if modelled and shown:
        lines += ["", "Times are modelled from what the interpreter counted, for the device named above; nothing was",
                  "timed against eager. tried: verified/all."]
    return "\n".join(lines)


def _head(result: Document) -> list[str]:
    place = f"{result.device or 'no device'}{' (interpreted on the CPU)' if result.time_kind == 'modelled' else ''}"
    cost = "cost unknown" if result.cost_usd is None else f"${result.cost_usd:.2f}"
    lines = [f"{result.project}", f"{result.status} after {result.elapsed_s:.1f} s on {place}; {cost}, {result.tokens} tokens"]
    if result.error:
        lines.append(f"error: {result.error}")
    if result.package:
        lines.append(f"package: {result.package}")
    return lines


def _row(name: str, calls: str, baseline: str, best: str, speedup: str, tried: str, status: str, name_width: int) -> str:
    return (f"{_cut(name, name_width):<{name_width}} {calls:>5} {baseline:>9} {best:>9} {speedup:>12} {tried:>6} "
            f"{status}").rstrip()


def _name(item: OperatorResult) -> str:
    return f"{short_name(item.operator)} {item.variant[:4]}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _time(us: float | None) -> str:
    if us is None:
        return "-"
    return f"{us / 1000:.3g} ms" if us >= 1000 else f"{us:.3g} us"


def _speedup(item: OperatorResult) -> str:
    if item.speedup is None:
        return "-"
    spread = f" ±{(item.interval[1] - item.interval[0]) / 2:.2f}" if item.interval else ""
    return f"{item.speedup:.2f}x{spread}"


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(" ".join(text.split()), width, initial_indent="    ", subsequent_indent="    ", max_lines=3,
                         placeholder=" …")


def _skipped(items: list[OperatorResult], width: int) -> list[str]:
    """One line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for item in items:
        by_reason.setdefault(item.reason or "no reason given", []).append(short_name(item.operator))
    lines = ["skipped:"]
    for reason, names in by_reason.items():
        counted = [f"{name} x{names.count(name)}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
        lines += _wrapped(f"{reason}: {', '.join(counted)}", width)
    return lines


def event_line(event: events.AnyEvent, name_of: Callable[[str], str] = lambda key: key) -> str | None:
    """One event in plain words; None for what is not worth a line. name_of: a variant's key -> what to call it."""

    def name(node: str) -> str:
        variant, _, number = node.partition("/")
        return f"{name_of(variant)} #{number}"

    match event:
        case events.RunStarted():
            return f"run {event.run} on {event.device}: provider {event.provider}, policy {event.policy}, seed {event.seed}"
        case events.Captured():
            return f"captured {event.variants} operator variants, {event.offered} of them open to a kernel"
        case events.Selected():
            names = ", ".join(name_of(key) for key in event.operators)
            return f"working on {len(event.operators)}: {names}" if names else "nothing to work on"
        case events.Replied() if event.kernel is None:
            return f"{name(event.node)}  no kernel: {event.problem}"
        case events.Judged() if event.duplicate_of:
            return f"{name(event.node)}  the same code as {name(event.duplicate_of)}"
        case events.Judged() | events.Confirmed():
            verdict = event.verdict
            outcome = f"confirmed: {verdict.outcome}" if isinstance(event, events.Confirmed) else verdict.outcome
            timing = f"  {verdict.timing.us:.4g} us ({verdict.timing.kind})" if verdict.verified and verdict.timing else ""
            return f"{name(event.node)}  {outcome}{timing}  {verdict.sentence}"
        case events.OperatorDone():
            return f"{name_of(event.variant)}  {event.status}: {event.reason}"
        case events.Packaged():
            return f"packaged {event.kernels} kernels: {event.path}"
        case events.InModel():
            return (f"in the model: {event.kernel_calls} calls by kernels, {event.fallback_calls} by the original operators; "
                    f"outputs within {event.relative_error:.2g} of eager's{f' ({event.detail})' if event.detail else ''}")
        case events.Note():
            return event.text if event.level == "info" else f"{event.level}: {event.text}"
        case events.RunEnded():
            return f"{event.status}: {event.reason}"
    return None
