"""One candidate as lines: verdict, timing, profile."""

from __future__ import annotations

from forge_tui.cuda.remarks import remarks
from forge_tui.cuda.target import LaunchCounts
from forge_tui.engine.cards import OperatorFile, Variant
from forge_tui.engine.judge.verdict import Point, Verdict
from forge_tui.engine.search.tree import Node
from forge_tui.screens.widgets.lines import plain, wrapped
from forge_tui.screens.widgets.paint import Line
from forge_tui.screens.words import TOKENS, bar, clock, microseconds, money, speedup, state

HEAT = ("forge-verified bold", "forge-verified", "warning", "accent", "forge-failed")
"""From the fastest to the slowest; the figures stand there too."""
CLOSE_US = 100.0
"""Below this tuning points differ in the second decimal."""
SCALE = 40
"""Cells of the interval's and the roofline's bars."""


def verdict_lines(node: Node, verdict: Verdict | None, width: int) -> list[Line]:
    """What was checked, with each figure and what was allowed."""
    lines: list[Line] = [((state(node.outcome), TOKENS.get(node.outcome, "") + " bold"),)]
    if verdict is None:
        problem = node.replied.problem if node.replied else ""
        return lines + wrapped(
            problem
            or ("being judged now" if node.kernel else "being written: `reasoning` shows it as it comes (6)"),
            width,
        )
    lines += wrapped(verdict.sentence, width)
    if node.judged is not None and node.judged.duplicate_of:
        lines += wrapped(f"the same code as {node.judged.duplicate_of}: its verdict is shown", width)
    if node.confirmed is not None:
        lines += wrapped(
            f"judged twice: once more in a fresh process on fresh inputs, {node.confirmed.verdict.outcome}", width
        )
    lines += [(), *_checks(verdict, width)]
    if verdict.worst:
        worst = verdict.worst
        lines += [
            (),
            *wrapped(
                f"worst: {worst.output}{list(worst.index)} is {worst.got:g}, expected {worst.expected:g}, "
                f"allowed difference {worst.allowed:.3g}",
                width,
                "forge-failed",
            ),
        ]
    if verdict.proxy:
        lines += [(), *wrapped(f"run on a smaller call of the same kind: {verdict.proxy}", width)]
    lines += [
        (),
        *wrapped(
            f"seed {verdict.seed}, judged in {verdict.judged_s:.1f} s; "
            f"{node.origin} move, {node.strategy}, by {node.model or node.provider}",
            width,
            "forge-muted",
        ),
    ]
    if node.replied and node.replied.reply_file:
        tokens = node.replied.tokens_in + node.replied.tokens_out
        lines += wrapped(
            f"reply after {clock(node.replied.seconds)}, {money(node.replied.cost_usd, tokens)}", width, "forge-muted"
        )
    return lines


def _checks(verdict: Verdict, width: int) -> list[Line]:
    """A line a check: sign, name, figure, what was allowed, and how much of it was used."""
    size = max((len(check.name) for check in verdict.checks), default=0)
    room = width - size - 32
    """For what a check says, on its own line."""
    lines: list[Line] = []
    for check in verdict.checks:
        token = "" if check.passed else "forge-failed"  # what failed stands out
        figure = "" if check.figure is None else f"{check.figure:.2g}"
        allowed = "" if check.allowed is None else f"≤ {check.allowed:.2g}"
        used = bar(check.figure / check.allowed, 8) if check.figure is not None and check.allowed else ""
        lines.append(
            (
                (f"{'✓' if check.passed else '✗'} ", token),
                (f"{check.name:<{size}}", ""),
                (f" {figure:>8} {allowed:<9} ", ""),
                (used, token),
                (f" {check.detail}" if check.passed and len(check.detail) < room else "", "forge-muted"),
            )
        )
        if check.detail and not check.passed:
            lines += wrapped(check.detail, width, "forge-muted", indent="    ")
    return lines


def timing_lines(
    verdict: Verdict | None,
    points: tuple[Point, ...],
    variant: Variant | None,
    cards: OperatorFile | None,
    width: int,
    shapes: list[Line] | None = None,
) -> list[Line]:
    """Time with its interval, where it stands between eager and the floor, and every tuning point. points: of the first
    verdict, since a confirmation times the winner alone. shapes: the same kernel over the operator's other shapes."""
    if verdict is None or verdict.timing is None:
        return wrapped("not timed: only what passes every check is", width)
    timing = verdict.timing
    lines: list[Line] = [((microseconds(timing.us), "bold"), (f"  {timing.kind} time of one call", ""))]
    if timing.interval:
        lines += [_interval(timing.interval, timing.us)]
    if timing.speedup is not None:
        lines.append(
            (
                (
                    f"{speedup(timing.speedup, timing.speedup_interval)} over {timing.baseline} "
                    f"({microseconds(timing.baseline_us)})",
                    "forge-verified",
                ),
            )
        )
    else:
        lines += wrapped(
            "nothing is timed against eager on the host target: no speed-up is claimed", width, "forge-muted"
        )
    if variant is not None:
        lines += [(), *_roofline(timing.us, variant, cards, width)]
    settings = ", ".join(f"{name} {value}" for name, value in verdict.settings.items())
    if settings:
        lines += [(), (("settings  ", "forge-muted"), (settings, ""))]
    for note in timing.notes:
        lines += wrapped(note, width, "warning")
    heat = heat_table(points)
    return lines + (shapes or []) + ([(), *heat] if heat else []) + [(), *_points(points, width)]


def _interval(interval: tuple[float, float], us: float) -> Line:
    low, high = interval
    span = max(high - low, 1e-9)
    at = round((us - low) / span * (SCALE - 1))
    line = "".join("●" if cell == max(0, min(SCALE - 1, at)) else "─" for cell in range(SCALE))
    return ((f"{low:.2f} ", "forge-muted"), (f"├{line}┤", ""), (f" {high:.2f} us", "forge-muted"))


def _roofline(us: float, variant: Variant, cards: OperatorFile | None, width: int) -> list[Line]:
    """How much of what the device could do is used."""
    reached = variant.floor_us / us if us else 0.0
    lines: list[Line] = [
        (
            ("ceiling   ", "forge-muted"),
            (bar(reached, min(SCALE, width - 20)), "forge-running"),
            (f" {reached:.0%}", "bold"),
        )
    ]
    rate = variant.bytes_moved / us / 1e6 if us else 0.0
    text = (
        f"{variant.bytes_moved / 1024:.0f} KiB moved at {rate:.2f} TB/s; the floor is {microseconds(variant.floor_us)}"
    )
    if cards is not None:
        device = cards.device
        text += f" ({device.copy_bytes_per_s / 1e12:.1f} TB/s copy, {device.launch_us:.1f} us launch, {device.name})"
    return lines + wrapped(text, width, "forge-muted")


def heat_table(points: tuple[Point, ...]) -> list[Line]:
    """Times over the two settings with the most values, the fastest of the others in each cell."""
    values: dict[str, list[int]] = {}
    for point in points:
        for name, value in point.settings.items():
            if value not in values.setdefault(name, []):
                values[name].append(value)
    names = sorted((name for name in values if len(values[name]) > 1), key=lambda name: -len(values[name]))[:2]
    if len(names) < 2:
        return []
    down, across = names
    best: dict[tuple[int, int], float] = {}
    for point in points:
        if point.us is not None:
            cell = (point.settings[down], point.settings[across])
            best[cell] = min(point.us, best.get(cell, point.us))
    if not best:
        return []
    fastest = min(best.values())
    lines: list[Line] = [
        (
            (f"{down + ' ↓  ' + across + ' →':<18}", "forge-muted"),
            *((f"{value:>9}", "forge-muted bold") for value in sorted(values[across])),
        )
    ]
    for row in sorted(values[down]):
        cells = [_heat(best.get((row, column)), fastest) for column in sorted(values[across])]
        lines.append(((f"{row:<18}", "forge-muted bold"), *cells))
    return lines


def _heat(us: float | None, fastest: float) -> tuple[str, str]:
    if us is None:
        return f"{'–':>9}", "forge-muted"
    slower = us / fastest - 1
    return f"{us:>8.2f}{'*' if slower == 0 else ' '}", HEAT[sum(slower > limit for limit in (0.0, 0.05, 0.2, 0.5))]


def _points(points: tuple[Point, ...], width: int) -> list[Line]:
    lines: list[Line] = [((f"{len(points)} tuning points, fastest first", "forge-muted"),)] if points else []
    for point in sorted(points, key=lambda point: (point.us is None, point.us or 0.0)):
        settings = " ".join(f"{name}={value}" for name, value in point.settings.items())
        lines.append(
            (
                (f"{_exact(point.us):>10}  ", ""),
                (settings, ""),
                (f"  {point.reason}" if point.reason else "", "forge-failed"),
            )
        )
    return lines


def _exact(us: float | None) -> str:
    return f"{us:.2f} us" if us is not None and us < CLOSE_US else microseconds(us)


def profile_lines(verdict: Verdict | None, width: int) -> list[Line]:
    """What the kernels did, counted by the interpreter, and what the compiler says of them."""
    if verdict is None:
        return plain("not judged yet")
    best = next((point for point in verdict.points if point.settings == verdict.settings), None)
    lines: list[Line] = []
    for remark in remarks(verdict.counts, best.kernels if best else ()):
        text = remark.text[:1].upper() + remark.text[1:]
        lines += [tuple((words, "bold") for words, _ in line) for line in wrapped(text, width)]
        lines += [*wrapped(remark.cure, width), ()]
    for counts in verdict.counts:
        sectors, requests = counts.global_sectors, counts.shared_requests
        used = counts.global_bytes / (32 * sectors) if sectors else 0.0
        lines += [
            ((counts.kernel, "bold"), (f"  {counts.blocks} blocks of {counts.threads} threads", "")),
            _figure(
                "instructions", f"{counts.thread_instructions:,} by threads, {counts.warp_instructions:,} by warps"
            ),
            _figure(
                "active lanes",
                _part(
                    counts.thread_instructions / (32 * counts.warp_instructions) if counts.warp_instructions else 0.0
                ),
            ),
            _figure(
                "global", f"{counts.global_requests:,} requests, {sectors:,} sectors, {counts.global_bytes:,} bytes"
            ),
            _figure("sector use", _part(used)),
            _figure("least sectors", f"{counts.global_least:,} would do for these bytes"),
            _figure(
                "shared",
                f"{requests:,} requests, {counts.shared_waves:,} passes"
                + (f", {counts.shared_waves / requests:.2f} a request" if requests else ""),
            ),
            _figure("barriers", f"{counts.barriers:,}"),
            _figure("shared memory", f"{counts.shared_bytes:,} bytes a block"),
            _figure("divergence", f"{counts.divergent_branches:,} of {counts.branches:,} branches split a warp"),
            *([_figure("atomics", f"{counts.atomics:,} by warps, {counts.atomic_passes:,} passes")] if counts.atomics else []),
            *([_figure("instruction mix", _mix(counts))] if counts.classes else []),
            (),
        ]
    for kernel in best.kernels if best else ():
        known = [
            f"{value} {name}"
            for value, name in (
                (kernel.registers, "registers"),
                (kernel.static_shared, "bytes static shared"),
                (kernel.spill_bytes, "bytes spilled"),
            )
            if value is not None
        ]
        lines.append(_figure(kernel.name[:18], ", ".join(known) or "the compiler says nothing of it"))
    return lines or wrapped("nothing was counted: the interpreter of the host target counts, a GPU does not", width)


def _mix(counts: LaunchCounts) -> str:
    """The commonest kinds of instructions, as parts of all."""
    total = max(1, counts.thread_instructions)
    return ", ".join(f"{c.name} {c.threads / total:.0%}" for c in counts.classes[:5] if c.threads * 50 >= total)


def _figure(name: str, text: str) -> Line:
    return ((f"{name:<16}", "forge-muted"), (text, ""))


def _part(fraction: float) -> str:
    return f"{bar(fraction, 16)} {fraction:.0%}"
