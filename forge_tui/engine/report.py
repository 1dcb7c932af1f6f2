"""What a run came to, for machines (the document) and for people (a table, a line for each event)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Literal

from forge_tui.engine import events
from forge_tui.engine.cards import OperatorFile, Variant
from forge_tui.engine.document import SCHEMA_VERSION, Document, OperatorResult
from forge_tui.engine.selection import worth_it
from forge_tui.engine.state import OperatorState, RunState
from forge_tui.specs import short_name
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
    status, reason = _status(cards, variant, operator, state)
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


def _status(cards: OperatorFile, variant: Variant, operator: OperatorState | None,
            state: RunState) -> tuple[Literal["won", "no_gain", "failed", "skipped", "pending", "verified"], str]:
    if operator is not None and operator.done is not None:
        return operator.done.status, operator.done.reason
    if not variant.offered and variant.key not in state.selected:
        return "skipped", variant.reason
    if operator is None or variant.key not in state.selected and not operator.tree.nodes:
        if not state.selected:
            return "pending", "not worked on yet"
        return "skipped", "not selected" if worth_it(cards, variant) else "too little to save (name it with --ops to work on it)"
    if state.ended is not None:
        return "pending", state.ended.reason
    return "pending", "in progress"


def render_table(result: Document, width: int = 80, cards: OperatorFile | None = None) -> str:
    """The document for people: plain text, nothing told by colour, at most `width` columns (80 at least). cards: of the project, by
    which shares are counted once; what is counted with a region stands in brackets."""
    width = max(width, 80)
    modelled = result.time_kind == "modelled"
    lines = _head(result)
    shown = [item for item in result.operators if item.status != "skipped" or item.tried]
    if shown:
        lines += ["", *_rows(shown, modelled, width, cards.counted() if cards else {})]
    skipped = [item for item in result.operators if item not in shown]
    if skipped:
        lines += ["", *_skipped(skipped, width)]
    if modelled and shown:
        lines += ["", *_wrapped("Times are modelled from what the interpreter counted, for the device named above; nothing is "
                                "timed against eager here.", width, indent="")]
    return "\n".join(lines)


def _rows(shown: list[OperatorResult], modelled: bool, width: int, counted: Mapping[str, float]) -> list[str]:
    """Heading and rows; columns without any value are left out, reasons stand below their row."""
    columns = {
        "operator": [f"{short_name(item.operator)} {item.variant[:4]}" for item in shown],
        "share": [_share(item, counted.get(item.variant, item.share)) for item in shown],
        "calls": [str(item.calls) for item in shown],
        "baseline": [_time(item.baseline_us) for item in shown],
        "modelled" if modelled else "best": [_time(item.best_us) for item in shown],
        "floor": [_time(item.floor_us) for item in shown],
        "speed-up": [_speedup(item) for item in shown],
        "verified": [f"{item.verified} of {item.tried}" for item in shown],
        "status": [item.status.replace("_", " ") for item in shown],
    }
    columns = {title: cells for title, cells in columns.items() if any(cells)}
    sizes = {title: max(len(title), *map(len, cells)) for title, cells in columns.items()}
    for spare in ("floor", "calls", "share"):
        if _over(sizes, width) > sizes["operator"] - 20:
            columns.pop(spare, None), sizes.pop(spare, None)
    sizes["operator"] -= max(0, _over(sizes, width))
    columns["operator"] = [_shorten(text, sizes["operator"]) for text in columns["operator"]]
    lines = ["  ".join(_cell(title, title, sizes) for title in columns).rstrip()]
    for index, item in enumerate(shown):
        lines.append("  ".join(_cell(cells[index], title, sizes) for title, cells in columns.items()).rstrip())
        if item.status in ("failed", "skipped", "pending", "no_gain") and item.reason:
            lines += _wrapped(item.reason, width)
    return lines


def _share(item: OperatorResult, counted: float) -> str:
    return f"{counted:.1%}" if counted or not item.share else f"({item.share:.1%})"


def _over(sizes: dict[str, int], width: int) -> int:
    """Columns that a row is too wide by."""
    return sum(sizes.values()) + 2 * (len(sizes) - 1) - width


def _shorten(name: str, size: int) -> str:
    """An operator's name cut in its middle, so that the variant's digits stay."""
    return name if len(name) <= size else f"{name[:size - 6]}…{name[-5:]}"


def _cell(text: str, title: str, sizes: dict[str, int]) -> str:
    return text.ljust(sizes[title]) if title in ("operator", "status") else text.rjust(sizes[title])


def _head(result: Document) -> list[str]:
    place = f"{result.device or 'no device'}{' (interpreted on the CPU)' if result.time_kind == 'modelled' else ''}"
    cost = "cost unknown" if result.cost_usd is None else f"${result.cost_usd:.2f}"
    lines = [f"{result.project}", f"{result.status} after {result.elapsed_s:.1f} s on {place}; {cost}, {result.tokens} tokens"]
    if result.error:
        lines.append(f"error: {result.error}")
    if result.package:
        lines.append(f"package: {result.package}")
    return lines


def _time(us: float | None) -> str:
    if us is None:
        return ""
    return f"{us / 1000:.3g} ms" if us >= 1000 else f"{us:.3g} us"


def _speedup(item: OperatorResult) -> str:
    if item.speedup is None:
        return ""
    spread = f" [{item.interval[0]:.2f}, {item.interval[1]:.2f}]" if item.interval else ""
    return f"{item.speedup:.2f}x{spread}"


def _wrapped(text: str, width: int, indent: str = "    ") -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent, max_lines=3,
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
        case events.Steered():
            made = f", as {name(event.made)}" if event.made else ""
            return f"{name(event.node) if '/' in event.node else name_of(event.node)}  a person's {event.action}{made}"
        case events.OperatorDone():
            return f"{name_of(event.variant)}  {event.status}: {event.reason}"
        case events.Packaged():
            return f"packaged {event.kernels} kernels: {event.path}"
        case events.InModel():
            return (f"in the model: {event.kernel_calls} calls by kernels, {event.fallback_calls} by the original operators; "
                    f"outputs within {event.relative_error:.2g} of eager's{f' ({event.detail})' if event.detail else ''}")
        case events.Benched():
            return f"whole model {'accepted' if event.accepted else 'not accepted'}: {event.reason}"
        case events.Note():
            return event.text if event.level == "info" else f"{event.level}: {event.text}"
        case events.RunEnded():
            return f"{event.status}: {event.reason}"
    return None
