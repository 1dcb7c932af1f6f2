"""Operators and their variants as rows: folded by operator, sorted by any column, filtered."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from forge_tui.engine.cards import Variant
from forge_tui.engine.events import KernelUse
from forge_tui.engine.state import OperatorState
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.table import Cell, Column, Row
from forge_tui.screens.words import TOKENS, bar, microseconds, short, speedup, state

COLUMNS = (
    Column("operator", 0, most=56, least=28),
    Column("calls", 5, "right", drop=9),
    Column("share", 10, drop=2),
    Column("eager", 12, "right", drop=7),
    Column("floor", 9, "right", drop=10),
    Column("saves", 9, "right", drop=4),
    Column("best", 9, "right", drop=3),
    Column("speed-up", 8, "right", drop=1),
    Column("interval", 12, drop=8),
    Column("ceiling", 7, "right", drop=11),
    Column("tried", 5, "right", drop=6),
    Column("cost", 7, "right", drop=12),
    Column("in model", 10, drop=5),
    Column("status", 13),
)
"""What goes first where room is short is in docs/screens.md; name, status and the column sorted by stay."""
OPERATOR, SHARE, SAVES, BEST, SPEEDUP, INTERVAL, CEILING, TRIED, COST, IN_MODEL, STATUS = 0, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13
"""Columns."""
WORDS = frozenset({OPERATOR, IN_MODEL, STATUS})
"""Columns of words: sorted from A, where those of numbers are from the largest down."""
GROUP = "op:"
"""Begins the key of an operator's row; the operator follows."""


@dataclass(frozen=True)
class Entry:
    """A variant with what is known of its search."""

    variant: Variant
    operator: OperatorState | None
    share: float = 0.0
    """Its part of the time, as counted once: 0 for what is inside a region that is offered."""
    whole: float = 0.0
    """Its part of the time, what is counted elsewhere included."""

    @property
    def best_us(self) -> float | None:
        best = self.operator.best if self.operator else None
        return best.us if best else None

    @property
    def gain(self) -> tuple[float | None, tuple[float, float] | None]:
        """Speed-up and interval of the best kernel, where anything was timed against eager."""
        best = self.operator.best if self.operator else None
        timing = best.verdict.timing if best and best.verdict else None
        return (timing.speedup, timing.speedup_interval) if timing else (None, None)

    @property
    def baseline_us(self) -> float:
        best = self.operator.best if self.operator else None
        timing = best.verdict.timing if best and best.verdict else None
        return timing.baseline_us if timing and timing.baseline_us else self.variant.time_us

    @property
    def worked_on(self) -> bool:
        """Offered, or searched for all the same: what is inside a region without a win."""
        return self.variant.offered or (self.operator is not None and (self.operator.done is not None or bool(self.operator.tree.nodes)))

    @property
    def status(self) -> str:
        if not self.worked_on:
            return "not offered"
        return self.operator.status if self.operator else "pending"


SORT_KEYS: tuple[Callable[[Entry, ProjectWatch], float | str | tuple[float, float]], ...] = (
    lambda entry, watch: short(entry.variant.operator),
    lambda entry, watch: -entry.variant.calls,
    lambda entry, watch: (-entry.share, -entry.whole),
    lambda entry, watch: -entry.variant.time_us,
    lambda entry, watch: -entry.variant.floor_us,
    lambda entry, watch: -entry.variant.recoverable_us,
    lambda entry, watch: -(entry.best_us or 0.0),
    lambda entry, watch: -(entry.gain[0] or 0.0),
    lambda entry, watch: -((entry.gain[1] or (0.0, 0.0))[0]),
    lambda entry, watch: -(entry.variant.floor_us / entry.best_us if entry.best_us else 0.0),
    lambda entry, watch: -(entry.operator.tried if entry.operator else 0),
    lambda entry, watch: -(entry.operator.cost_usd if entry.operator else 0.0),
    lambda entry, watch: in_model(watch, entry)[0].lstrip("✓✗ "),
    lambda entry, watch: entry.status,
)
"""By column; numbers from the largest down."""


class OperatorRows:
    """The rows of one project."""

    def __init__(self, watch: ProjectWatch) -> None:
        self.watch = watch
        self.open: set[str] = set()
        """Operators whose variants are shown."""
        self.sort: tuple[int, bool] | None = None
        """Column and whether upside down; None: as the cards have it, by `ranked_by`."""
        self._entries: dict[str, Entry] = {}
        self._groups: dict[str, list[Entry]] = {}
        self._guides: dict[str, str] = {}

    def keys(self, wanted: str = "") -> list[str]:
        cards = self.watch.cards
        if cards is None:
            return []
        counted, total = cards.counted(), cards.total_us
        self._entries = {
            variant.key: Entry(
                variant,
                self.watch.state.operators.get(variant.key),
                counted[variant.key],
                variant.calls * variant.time_us / total if total else 0.0,
            )
            for variant in cards.variants
        }
        entries = [entry for entry in self._entries.values() if self._fits(entry, wanted.lower())]
        if self.sort is not None:
            column, backwards = self.sort
            entries.sort(key=lambda entry: SORT_KEYS[column](entry, self.watch), reverse=backwards)
        self._groups, self._guides = {}, {}
        for entry in entries:
            self._groups.setdefault(entry.variant.operator, []).append(entry)
        return self._flat(bool(wanted))

    @property
    def modelled(self) -> bool:
        """Whether times of the original are of this machine's CPU, and those of kernels modelled: never compared."""
        return self.watch.cards is not None and self.watch.cards.time_kind == "cpu"

    @property
    def ranked_by(self) -> int:
        """The column by which the cards rank operators: what a kernel could save, or the share where that is not known."""
        return SHARE if self.modelled else SAVES

    @property
    def sorting(self) -> tuple[int, bool]:
        """Column and whether its largest are on top, also where the order is the cards' own."""
        column, backwards = self.sort or (self.ranked_by, False)
        return column, backwards == (column in WORDS)

    @property
    def kept(self) -> frozenset[int]:
        """Columns that stay at every width beside the one sorted by: where nothing is timed, the kernel's time is the figure."""
        return frozenset({BEST}) if SPEEDUP in self.silent() else frozenset()

    def silent(self) -> frozenset[int]:
        """Columns that have nothing to say: speed-up where nothing is timed against eager, cost where all was free, what
        comes of kernels where there are none. Not the one that somebody sorts by."""
        state = self.watch.state
        found = set()
        if all(entry.gain[0] is None for entry in self._entries.values()):
            found |= {SPEEDUP, INTERVAL}
        if not state.cost_known and not state.unpriced:
            found.add(COST)
        if self.modelled:
            found |= {SAVES}
        if all(entry.best_us is None for entry in self._entries.values()):
            found |= {BEST, CEILING}
            if not any(entry.operator and entry.operator.tried for entry in self._entries.values()):
                found |= {TRIED, IN_MODEL}
        return frozenset(found - {self.sort[0]} if self.sort else found)

    def share_of(self, *statuses: str) -> list[float]:
        """Shares of the offered variants that are in one of these states."""
        return [
            entry.share
            for entry in self._entries.values()
            if entry.variant.offered and entry.status in statuses
        ]

    def _flat(self, everything: bool) -> list[str]:
        keys: list[str] = []
        for operator, entries in self._groups.items():
            if len(entries) == 1:
                keys.append(entries[0].variant.key)
                continue
            keys.append(GROUP + operator)
            if everything or operator in self.open:
                for index, entry in enumerate(entries):
                    self._guides[entry.variant.key] = "└ " if index == len(entries) - 1 else "├ "
                    keys.append(entry.variant.key)
        return keys

    def _fits(self, entry: Entry, wanted: str) -> bool:
        variant = entry.variant
        text = f"{variant.operator} {variant.key} {entry.status} {variant.reason} {shape_of(variant)}".lower()
        return all(word in text for word in wanted.split())

    def entry(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def variants_of(self, key: str) -> list[Entry]:
        """Of an operator's row all its variants, else the one."""
        if key.startswith(GROUP):
            return self._groups.get(key.removeprefix(GROUP), [])
        return [self._entries[key]] if key in self._entries else []

    def row(self, key: str) -> Row:
        entries = self.variants_of(key)
        if key.startswith(GROUP):
            return self._group_row(key, entries)
        return self._variant_row(entries[0], self._guides.get(key, ""))

    def _variant_row(self, entry: Entry, guide: str) -> Row:
        variant, operator = entry.variant, entry.operator
        best = entry.best_us
        name = f"{shape_of(variant)}  {variant.key[:4]}" if guide else f"{short(variant.operator)} {shape_of(variant)}"
        return Row(
            variant.key,
            (
                Cell(f"{guide}{name}"),
                Cell(str(variant.calls)),
                Cell(share_text(entry.share, entry.whole)),
                Cell(microseconds(entry.baseline_us) + (" CPU" if self.modelled else "")),
                Cell(microseconds(variant.floor_us)),
                Cell(microseconds(variant.recoverable_us)),
                Cell(microseconds(best)),
                Cell(speedup(entry.gain[0])),
                Cell(interval_text(entry.gain[1]), "forge-muted"),
                Cell(f"{variant.floor_us / best:.0%}" if best else "–"),
                Cell(str(operator.tried) if operator else "–"),
                Cell(_cost(operator)),
                self._in_model(entry),
                self._status(entry),
            ),
        )

    def _group_row(self, key: str, entries: list[Entry]) -> Row:
        operator = key.removeprefix(GROUP)
        share, whole = sum(entry.share for entry in entries), sum(entry.whole for entry in entries)
        offered = [entry for entry in entries if entry.worked_on]
        good = sum(entry.status in ("won", "verified") for entry in offered)
        same = {entry.status for entry in entries}
        word = (
            f"{good} of {len(offered)} good" if len(same) > 1 else "– not offered" if not offered else state(same.pop())
        )
        pending = sum(entry.operator.pending for entry in entries if entry.operator) if self.watch.running else 0
        if pending:
            word = f"▶ {pending} in flight"
        sign = "▾" if operator in self.open else "▸"
        used = sum(entry.variant.key in self.watch.packaged for entry in entries)
        return Row(
            key,
            (
                Cell(f"{sign} {short(operator)}  {len(entries)} variants", "bold"),
                Cell(str(sum(entry.variant.calls for entry in entries))),
                Cell(share_text(share, whole)),
                Cell(""),
                Cell(""),
                Cell(microseconds(math.fsum(entry.variant.recoverable_us for entry in entries))),
                Cell(""),
                Cell(""),
                Cell(""),
                Cell(""),
                Cell(str(sum(entry.operator.tried for entry in entries if entry.operator)) if offered else "–"),
                Cell(""),
                Cell(f"{used} used" if used else ""),
                Cell(word, "forge-running" if pending else "forge-verified" if good else "forge-muted"),
            ),
        )

    def _status(self, entry: Entry) -> Cell:
        pending = entry.operator.pending if entry.operator and self.watch.running else 0
        if pending:
            return Cell(f"▶ {pending} in flight", "forge-running")
        if not entry.worked_on:
            return Cell("– not offered", "forge-muted")
        return Cell(state(entry.status), TOKENS.get(entry.status, ""))

    def _in_model(self, entry: Entry) -> Cell:
        word, token = in_model(self.watch, entry)
        return Cell(word, token)


def use_of(watch: ProjectWatch, key: str) -> KernelUse | None:
    """How a variant's kernel fared when the model was run with the package; None where that is not known."""
    proof = watch.state.in_model
    return next((use for use in proof.kernels if use.variant == key), None) if proof else None


def in_model(watch: ProjectWatch, entry: Entry) -> tuple[str, str]:
    """What the model uses for this variant (`3 of 4`: calls that the kernel took), and its token."""
    if entry.variant.key not in watch.packaged:
        return ("original", "forge-muted")
    if watch.state.package_stale:
        return "✓ older", "forge-running"
    use = use_of(watch, entry.variant.key)
    if use is None:
        return ("✓ used", "forge-verified") if watch.state.in_model else ("packed", "")
    back = sum(use.fallbacks.values())
    return f"{'✓' if use.calls else '✗'} {use.calls} of {use.calls + back}", "forge-running" if back else "forge-verified"


def in_model_reason(watch: ProjectWatch, entry: Entry) -> str:
    """Why the model uses what it uses."""
    if entry.variant.key in watch.packaged:
        if watch.state.package_stale:
            return "the package holds an older result; the next run writes it anew"
        use = use_of(watch, entry.variant.key)
        if use is not None:
            return _use_sentence(use)
        return "its kernel is in the package" + (
            ", which ran in the model" if watch.state.in_model else "; not run in the model yet"
        )
    if not entry.variant.offered:
        return f"the original operator: {entry.variant.reason}"
    if entry.status in ("won", "verified"):
        return "the original operator, until a package is written"
    return "the original operator: no kernel won"


def _use_sentence(use: KernelUse) -> str:
    if not use.calls and not use.fallbacks:
        return "its kernel is in the package; no call of the model came to it"
    sentence = f"its kernel ran {use.calls} time{'s' * (use.calls != 1)} in the model"
    if not use.fallbacks:
        return f"{sentence}, the original never"
    why = ", ".join(f"{reason} {count}" for reason, count in sorted(use.fallbacks.items(), key=lambda item: -item[1]))
    return f"{sentence}, the original {sum(use.fallbacks.values())}: {why}"


def shape_of(variant: Variant) -> str:
    """The first tensor's shape and, if it is not float32, its type."""
    for _, spec in variant.call.tensors():
        return f"{list(spec.shape)}" + ("" if spec.dtype == "float32" else f" {spec.dtype}")
    return variant.key[:4]


def share_text(share: float, whole: float) -> str:
    """A bar and a percentage; in brackets, without a bar, what is counted elsewhere. 10 columns."""
    return f"{bar(share, 5)} {share:4.0%}" if share or not whole else f"{f'({whole:.0%})':>10}"


def interval_text(interval: tuple[float, float] | None) -> str:
    """`1.40–1.45`; empty for None."""
    return f"{interval[0]:.2f}–{interval[1]:.2f}" if interval else ""


def _cost(operator: OperatorState | None) -> str:
    if operator is None or not operator.tried:
        return "–"
    return "unknown" if operator.unpriced else f"${operator.cost_usd:.2f}"
