"""What `benchmarks.host` and `benchmarks.calibration` stored, as sections of docs/measured.md."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any


def host_sections(folder: Path) -> list[str]:
    """The host target, then its model of time on each device measured; none where nothing is stored."""
    found = []
    path = folder / "host.json"
    if path.exists():
        document = json.loads(path.read_text())
        parts = [_kernels, _faults, _speed]
        lines = [line for part in parts for line in part(document)]
        found.append("\n".join(["## The host target", "", f"torch {document['versions']['torch']}, one core. Each part says when it was measured.", *lines,
                                *_verdicts(document, folder)]))
    for path in sorted(folder.glob("calibration-*.json")):
        found.append("\n".join(_calibration(json.loads(path.read_text()))))
    return found


def _about(part: dict[str, Any]) -> str:
    return f"`{part['command']}`, {part['date'][:10]}"


def _kernels(document: dict[str, Any]) -> list[str]:
    if "kernels" not in document:
        return []
    rows = document["kernels"]["found"]
    count = Counter(row["outcome"] for row in rows)
    known = len(rows) - count["not interpretable"]
    lines = ["", f"**Kernels against torch** ({_about(document['kernels'])}): {len(rows)} kernels, **{known / len(rows):.1%} interpretable**, "
                 f"**{count['right']} of {known} right**.", "", "| kind | kernels | interpretable | right |", "|---|---|---|---|"]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        some = [row for row in rows if row["kind"] == kind]
        able = [row for row in some if row["outcome"] != "not interpretable"]
        lines.append(f"| {kind} | {len(some)} | {len(able)} | {sum(row['outcome'] == 'right' for row in some)} |")
    return lines + ["", *(f"- {row['name']}: {row['outcome']}, {row['detail']}" for row in rows if row["outcome"] != "right")]


def _faults(document: dict[str, Any]) -> list[str]:
    if "faults" not in document:
        return []
    rows = document["faults"]["found"]
    lines = ["", f"**Planted faults** ({_about(document['faults'])}): {len(rows)}, **{sum(row['found'] for row in rows)} found with kind and line**; "
                 f"of {len(rows)} correct twins **{sum(bool(row['twin']) for row in rows)} called faulty**.", "", "| kind | planted | found | twins called faulty |", "|---|---|---|---|"]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        some = [row for row in rows if row["kind"] == kind]
        lines.append(f"| {kind} | {len(some)} | {sum(row['found'] for row in some)} | {sum(bool(row['twin']) for row in some)} |")
    return lines


def _speed(document: dict[str, Any]) -> list[str]:
    if "speed" not in document:
        return []
    lines = ["", f"**Speed**, all checks on ({_about(document['speed'])}): processor time of one thread, translation not counted, the fastest of nine.", "",
             "| | seconds | thread-instructions | ns each |", "|---|---|---|---|"]
    return lines + [f"| {row['case']} | {row['seconds']:.3f} | {row['thread_instructions'] / 1e6:.0f} M | {row['ns']:.2f} |" for row in document["speed"]["found"]]


def _verdicts(document: dict[str, Any], folder: Path) -> list[str]:
    """The host's verdicts, and where a device's differ."""
    if "verdicts" not in document:
        return []
    here = document["verdicts"]["found"]
    count = Counter(here.values())
    lines = ["", f"**Verdicts** of the judge ({_about(document['verdicts'])}): {len(here)} selftest and builtin kernels, "
                 + ", ".join(f"{number} {outcome}" for outcome, number in count.most_common()) + "."]
    for path in sorted(folder.glob("host-verdicts-*.json")):
        device = json.loads(path.read_text())
        there = device["verdicts"]
        both = {name: (here[name], outcome) for name, outcome in there.items() if name in here}
        differ = {name: pair for name, pair in both.items() if pair[0] != pair[1]}
        alike = sum((one == "verified") == (other == "verified") for one, other in both.values())
        lines += ["", f"On {device['device']['name']} ({_about(device)}): **{alike} of {len(both)} accepted, or refused, alike**, {len(both) - len(differ)} "
                      "with the same word." + (" Others are refused there for what their results show, here for what they did:" if differ else "")]
        lines += [f"- {name}: {pair[0]} on host, {pair[1]} there" for name, pair in differ.items()]
    return lines


def _calibration(document: dict[str, Any]) -> list[str]:
    total = document["summary"]
    lines = [f"## Modelled against measured time: {document['device']}", "",
             f"`{document['command']}`, {document['date'][:10]}. Rank correlation (Spearman) and ratio of modelled to measured time over settings of all kernels on "
             "one call; whether the best modelled tenth has a setting within 1 % of the measured best, and within 2 %; what the best modelled one loses; how "
             f"many settings were measured within 2 % of the best. In brackets what a model without error would reach, were measured times {document['noise']:.0%} off "
             "(standard deviation): rank correlation, and how often its best tenth holds the best.", "",
             f"Rank correlation 0.8 or more in **{total['rank_enough']} of {total['families']}**, median {total['spearman_median']:.2f}; the best tenth holds "
             f"the best in **{total['best_decile']} of {total['families']}** (one within 2 % in {total['best_decile_2']}); median ratio {total['ratio_median']:.2f}.", "",
             "| call | settings | within 2 % | rank | ratio | best tenth | within 2 % | loss |", "|---|---|---|---|---|---|---|---|"]
    for row in document["rows"]:
        lines.append(f"| {row['landscape']} | {row['points']} | {row['near_2']} | {row['spearman']:.2f} ({row['noise_spearman']:.2f}) | "
                     f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}] | {'yes' if row['best_decile'] else 'no'} "
                     f"({row['noise_best_decile']:.0%}) | {'yes' if row['best_decile_2'] else 'no'} | {row['regret'] - 1:.0%} |")
    blind = document["registers_unknown"]
    lines += ["", f"Without the compiler's registers, as the judge has it while it tunes: 0.8 or more in {blind['rank_enough']} of {blind['families']}, median "
                  f"{blind['spearman_median']:.2f}; the best tenth holds the best in {blind['best_decile']}."]
    if "fitted" in document:
        apart = document["fitted"]["held_out"]["summary"]
        lines += ["", f"With constants fitted on all other operators each time: 0.8 or more in {apart['rank_enough']} of {apart['families']}, median "
                      f"{apart['spearman_median']:.2f}; the best tenth holds the best in {apart['best_decile']} of {apart['families']} (one within 2 % in "
                      f"{apart['best_decile_2']}). Which terms the model has was chosen with all of them in view."]
    return lines
