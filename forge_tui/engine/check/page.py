"""The report of `forge-tui check` as text: the conclusion first, each fault beside its source, then counts and what is worth a look."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from forge_tui.cuda.target import LaunchCounts
from forge_tui.engine.check.checking import CheckReport, FoundFault

COLOURS = {"good": "32", "bad": "31;1", "dim": "2", "strong": "1", "mark": "33"}
"""SGR codes; each stands beside a word that says the same."""
MARKS = {"clean": ("✓", "good"), "fault": ("✗", "bad"), "wrong": ("✗", "bad"), "refused": ("✗", "bad"), "no_build": ("✗", "bad"),
         "skipped": ("–", "mark")}
LEFT = 14


class Page:
    """Lines of one report."""

    def __init__(self, report: CheckReport, source: str, columns: int, colour: bool) -> None:
        self.report, self.source = report, source.splitlines()
        self.columns, self.colour = max(40, columns), colour

    def render(self) -> str:
        parts = [list(part) for part in (self.head(), self.faults(), self.orders(), self.remarks(), self.launches())]
        return "\n\n".join("\n".join(part) for part in parts if part)

    def paint(self, text: str, how: str) -> str:
        return f"\x1b[{COLOURS[how]}m{text}\x1b[0m" if self.colour and how else text

    def head(self) -> Iterator[str]:
        report = self.report
        mark, how = MARKS[report.status]
        yield f"{self.paint(f'{mark} {report.status}'.replace('_', ' '), how)}  {self.paint(report.file, 'strong')}"
        yield from self.wrapped(report.sentence, "  ")
        if report.operator:
            yield from self.row("operator", report.operator)
            yield from self.row("inputs", ", ".join(f"{name}={value}" for name, value in report.inputs.items())
                                + f"  ({report.inputs_by})")
        if report.settings:
            yield from self.row("setting", " ".join(f"{name}={value}" for name, value in report.settings.items())
                                + (f"  (one of {report.settings_count}; --set picks another)" if report.settings_count > 1 else ""))

    def faults(self) -> Iterator[str]:
        for number, fault in enumerate(self.report.faults):
            if number:
                yield ""
            yield from self.fault(fault)

    def fault(self, fault: FoundFault) -> Iterator[str]:
        place = f"{self.report.file}:{fault.line}" if fault.line is not None else fault.kernel or self.report.file
        who = "".join(f", {name} {_triple(value)}" for name, value in (("block", fault.block), ("thread", fault.thread)) if value)
        order = f"  (order: {fault.order})" if fault.order not in ("", "in step") else ""
        yield f"{self.paint(fault.kind.replace('_', ' '), 'bad')} at {self.paint(place, 'strong')}{who}{order}"
        for line in fault.message.splitlines()[:12]:
            yield from self.wrapped(line, "  ")
        if fault.line is not None:
            yield from self.excerpt(fault.line)
        yield from self.wrapped(f"fix: {fault.cure}", "  ")

    def excerpt(self, line: int) -> Iterator[str]:
        """The line at fault between its neighbours."""
        for number in range(max(1, line - 1), min(len(self.source), line + 1) + 1):
            here = number == line
            text = f"  {'>' if here else ' '} {number:>4} | {self.source[number - 1].rstrip()}"[:self.columns]
            yield self.paint(text, "mark" if here else "dim")

    def orders(self) -> Iterator[str]:
        if self.report.runs:
            yield self.paint("orders of warps", "strong")
        for run in self.report.runs:
            yield from self.row(run.order, f"{run.outcome}{f': {run.detail}' if run.detail and run.outcome != 'fault' else ''}", 18)

    def remarks(self) -> Iterator[str]:
        if self.report.remarks:
            yield self.paint("worth a look", "strong")
        for remark in self.report.remarks:
            yield from self.wrapped(f"{remark.kernel}: {remark.text}", "  ")
            yield from (self.paint(line, "dim") for line in self.wrapped(remark.cure, "    "))

    def launches(self) -> Iterator[str]:
        for counts in self.report.counts:
            yield from self.launch(counts)
        if self.report.modelled_us is not None:
            yield from self.row("modelled", f"{self.report.modelled_us:.4g} us on {self.report.device}, from these counts; nothing was timed")

    def launch(self, counts: LaunchCounts) -> Iterator[str]:
        info = next((kernel for kernel in self.report.kernels if kernel.name == counts.kernel), None)
        resources = f", {info.registers} registers, {info.spill_bytes or 0} bytes spilled" if info and info.registers is not None else ""
        yield f"{self.paint(counts.kernel, 'strong')}  {counts.blocks:,} blocks of {counts.threads:,} threads" + resources
        lanes = counts.thread_instructions / (32 * counts.warp_instructions) if counts.warp_instructions else 0.0
        mix = ", ".join(f"{c.name} {c.threads / max(1, counts.thread_instructions):.0%}" for c in counts.classes[:5])
        yield from self.row("instructions", f"{counts.warp_instructions:,} by warps, {lanes:.0%} of lanes active; {mix}")
        yield from self.row("branches", f"{counts.branches:,} by warps, {counts.divergent_branches:,} split")
        yield from self.row("global", f"{counts.global_requests:,} requests, {counts.global_bytes:,} bytes in {counts.global_sectors:,} "
                                      f"sectors ({counts.global_least:,} would do)")
        if counts.shared_requests:
            yield from self.row("shared", f"{counts.shared_requests:,} requests, {counts.shared_waves:,} passes; {counts.shared_bytes:,} bytes a block")
        if counts.atomics:
            yield from self.row("atomics", f"{counts.atomics:,} by warps, {counts.atomic_passes:,} passes")
        if counts.barriers:
            yield from self.row("barriers", f"{counts.barriers:,}")

    def row(self, name: str, text: str, left: int = LEFT) -> list[str]:
        lines = textwrap.wrap(text, self.columns - left - 2) or [""]
        return [f"  {self.paint(f'{name:<{left}}', 'dim')}{lines[0]}", *(f"  {'':<{left}}{line}" for line in lines[1:])]

    def wrapped(self, text: str, indent: str) -> list[str]:
        return textwrap.wrap(text, self.columns, initial_indent=indent, subsequent_indent=indent)


def _triple(value: tuple[int, int, int]) -> str:
    return str(value[0]) if value[1:] == (0, 0) else f"({value[0]}, {value[1]}, {value[2]})"


def render(report: CheckReport, source: str, columns: int, colour: bool) -> str:
    """The whole report. source: the kernel file's text; columns: of the terminal; colour: whether escapes may be used."""
    return Page(report, source, columns, colour).render()
