"""The operator bench's side pane: the card, value statistics, the best kernel, what happens now."""

from __future__ import annotations

import math

from forge_tui.engine.judge.verdict import eager_off
from forge_tui.engine.show import signature
from forge_tui.screens.operatorrows import Entry, in_model_reason, shape_of
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.lines import wrapped
from forge_tui.screens.widgets.paint import Line
from forge_tui.screens.widgets.table import fit
from forge_tui.screens.words import TOKENS, bar, microseconds, money, short, speedup, state

SHOWN_MODULES = 1
IDEA_LINES = 3


def card_lines(watch: ProjectWatch, entry: Entry, width: int) -> list[Line]:
    """The most wanted first: result, why, then the call itself."""
    variant, operator = entry.variant, entry.operator
    name = short(variant.operator)
    lines: list[Line] = [((name, "bold"), (f"  {variant.key}", "forge-muted"))]
    if len(name) + len(variant.key) + 2 > width:  # a key of which half is missing is none
        lines = [*wrapped(name, width, "bold"), ((variant.key, "forge-muted"),)]
    if not entry.worked_on:
        lines += [(("– not offered", "forge-muted"),), *wrapped(variant.reason, width)]
    else:
        lines.append(((state(entry.status), TOKENS.get(entry.status, "")),))
        if operator and operator.done and operator.done.reason:
            lines += wrapped(operator.done.reason, width)
    lines += [(), *_times(watch, entry, width)]
    if operator and operator.best and operator.best.verdict:
        best = operator.best
        idea = f"#{best.number} {best.replied.idea if best.replied else best.strategy}"
        for number, line in enumerate(wrapped(idea, width - 6, "bold")[:IDEA_LINES]):
            lines += [()] if not number else []
            lines.append((("      " if number else "best  ", "forge-muted"), *line))
        lines += wrapped(best.verdict.sentence, width)
        if off := eager_off(best.verdict):
            lines += wrapped(off, width, "warning")
        if best.verdict.settings:
            lines += wrapped(
                ", ".join(f"{name} {value}" for name, value in best.verdict.settings.items()), width, "forge-muted"
            )
    if operator and operator.tried:
        cost = None if operator.unpriced else operator.cost_usd
        lines += [
            (),
            _figure("tried", f"{operator.tried}, {operator.verified} verified"),
            _figure("cost", money(cost, operator.tokens)),
        ]
    lines += [_figure("in model", ""), *wrapped(in_model_reason(watch, entry), width, indent="  ")]
    return lines + [(), *_call(entry, width)]


def _times(watch: ProjectWatch, entry: Entry, width: int) -> list[Line]:
    """Bars to one scale: baseline, best, floor. A CPU's time is told apart: it is never compared with a GPU's."""
    variant = entry.variant
    on_cpu = watch.cards is not None and watch.cards.time_kind == "cpu"
    rows = [
        ("eager", None if on_cpu else entry.baseline_us, ""),
        ("best", entry.best_us, "forge-verified"),
        ("floor", variant.floor_us, "forge-muted"),
    ]
    longest = max(us or 0.0 for _, us, _ in rows)
    size = max(4, width - 18)
    lines: list[Line] = []
    for name, us, token in rows:
        if us is not None:
            lines.append(
                (
                    (f"{name:<6}", "forge-muted"),
                    (bar(us / longest if longest else 0.0, size), token),
                    (f" {microseconds(us):>9}", ""),
                )
            )
    gain, interval = entry.gain
    if gain is not None:
        lines.append((("gain  ", "forge-muted"), (speedup(gain, interval), "forge-verified bold")))
    if on_cpu:
        return lines + wrapped(
            f"eager took {microseconds(entry.baseline_us)} on this machine's CPU, which is not comparable",
            width,
            "forge-muted",
        )
    lines.append(_figure("saves", f"{microseconds(variant.recoverable_us)} a forward at the floor"))
    return lines


def _call(entry: Entry, width: int) -> list[Line]:
    variant = entry.variant
    lines = [_figure("calls", f"{variant.calls} a forward"), *wrapped(signature(variant.call), width)]
    for name, spec in variant.call.tensors():
        values = variant.statistics.get(name)
        lines.append(((f"{name}", "primary"), (f"  {spec.dtype} {list(spec.shape)}", "")))
        if not spec.contiguous:
            lines += wrapped(f"strides {list(spec.stride)}", width, "forge-muted", indent="  ")
        if values and math.isfinite(values.minimum):
            parts = [
                f"{values.minimum:.3g} to {values.maximum:.3g}",
                f"mean {values.mean:.3g}",
                f"std {values.std:.3g}",
            ]
            parts += [f"{values.zeros:.0%} zeros"] if values.zeros else []
            parts += [f"{values.nonfinite:.0%} not finite"] if values.nonfinite else []
            lines += wrapped(", ".join(parts), width, "forge-muted", indent="  ")
    if variant.modules:
        names = ", ".join(name or "the model" for name in variant.modules[:SHOWN_MODULES])
        more = f" and {len(variant.modules) - SHOWN_MODULES} more" if len(variant.modules) > SHOWN_MODULES else ""
        lines += [(("called by", "forge-muted"),), *wrapped(names + more, width, indent="  ")]
    return lines


def group_lines(watch: ProjectWatch, entries: list[Entry], width: int) -> list[Line]:
    """An operator's row: its variants in a line each."""
    first = entries[0].variant
    lines: list[Line] = [
        ((short(first.operator), "bold"), (f"  {len(entries)} variants", "forge-muted")),
        (),
        *wrapped("space shows the variants as rows", width, "forge-muted"),
        (),
    ]
    alike: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        word = state(entry.status) if entry.worked_on else "– not offered"
        reason = entry.operator.done.reason if entry.operator and entry.operator.done else entry.variant.reason
        alike.setdefault((word, reason), []).append(entry)
    for (word, reason), same in alike.items():
        lines.append(((word, TOKENS.get(same[0].status, "")),))
        lines += wrapped(reason, width, "forge-muted", indent="  ") if reason else []
        for entry in same:
            shape = fit(shape_of(entry.variant), max(8, width - 17), "left")
            lines.append(
                (
                    (f"  {entry.variant.key[:4]} ", "forge-muted"),
                    (shape, ""),
                    (f" {microseconds(entry.best_us):>9}" if entry.best_us else "", ""),
                )
            )
        lines.append(())
    return lines


def _figure(name: str, text: str) -> Line:
    return ((f"{name:<9}", "forge-muted"), (text, ""))
