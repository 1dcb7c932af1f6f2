"""`python -m benchmarks.report`: writes docs/measured.md from the files under benchmarks/results/, so that no figure is typed by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.hostset.report import host_sections
from benchmarks.report_convolutions import convolutions
from benchmarks.report_models import models
from benchmarks.results import FOLDER

TARGET = FOLDER.parent.parent / "docs" / "measured.md"

HEAD = """# Measured

Written by `python -m benchmarks.report` from the files under `benchmarks/results/`; do not edit. Times are device times of one
call, caches cold (the L2 is flushed before every repetition), medians of repetitions interleaved with the baseline's.
"""


def main() -> None:
    TARGET.write_text(render(FOLDER))
    print(f"wrote {TARGET}")


def render(folder: Path) -> str:
    """The whole page."""
    parts = [HEAD]
    for name, section in (("operators", _operators), ("convolutions", convolutions), ("turnaround", _turnaround), ("repeatability", _repeatability),
                          ("robustness", _robustness), ("selftest", _selftest), ("models", models), ("exchange", _exchange)):
        for path in sorted(folder.glob(f"{name}-*.json")):
            document = json.loads(path.read_text())
            parts.append("\n".join([*_about(name, document), "", *section(document)]))
    parts += [*_search(folder), *host_sections(folder), *_judging(folder), *_guards(folder)]
    return "\n\n".join(parts) + "\n"


def _about(name: str, document: dict[str, Any]) -> list[str]:
    versions = document["versions"]
    lines = [f"## {name.capitalize()}: {document['device']['name']}", "",
             f"`{document['command']}`, {document['date'][:10]}, torch {versions['torch']}, NVRTC {versions['nvrtc']}. Copy bandwidth by a "
             f"kernel {document['device']['copy_bytes_per_s'] / 1e12:.2f} TB/s, empty launch {document['device']['launch_us']:.2f} us."]
    if "caveat" in document:
        lines += ["", f"**Caveat.** {document['caveat']}"]
    return lines


def _operators(document: dict[str, Any]) -> list[str]:
    lines = ["Time of the best builtin kernel in microseconds, the speed-up with its 99 % interval over the baseline named, and the share of",
             "the ceiling: the time that the bytes alone take at the copy bandwidth, over the time it takes.", "",
             "| model | call | us | speed-up | over | ceiling | kernel |", "|---|---|---|---|---|---|---|"]
    for row in document["rows"]:
        timing = row["timing"]
        if timing is None:
            lines.append(f"| {row['model']} | {row['workload']} | | none verified | | | |")
            continue
        low, high = timing["speedup_interval"]
        over = f"{timing['baseline']} {timing['baseline_us']:.1f}" + ("" if row.get("compile_baseline") != "not measured" else " *")
        lines.append(f"| {row['model']} | {row['workload']} | {timing['us']:.1f} | {timing['speedup']:.2f} [{low:.2f}, {high:.2f}] | {over} | "
                     f"{row['share_of_ceiling']:.0%} | {row['best']} |")
    times = Counter(row["measured"] for row in document["rows"] if "measured" in row)
    if len(times) > 1:
        lines += ["", f"Measured by {'; '.join(f'`{command}` ({count} rows)' for command, count in times.items())}."]
    if any(row.get("compile_baseline") == "not measured" for row in document["rows"]):
        lines += ["", "\\* torch.compile was not measured on this row."]
    return lines


def _turnaround(document: dict[str, Any]) -> list[str]:
    build = document["build"]
    lines = [f"- Build of one candidate: median {build['median_s'] * 1e3:.0f} ms, worst {build['worst_s'] * 1e3:.0f} ms ({build['worst']}), "
             f"over {len(build['seconds'])} builtin kernels."]
    lines += [f"- {item['kernel']} on an operator of {item['us']:.0f} us, {item['run']}: {item['outcome']} in {item['seconds']:.2f} s with "
              f"{item['points']} settings, of which builds {item['build_s']:.2f} s and the device held {item['held_s']:.2f} s." for item in document["judgement"]]
    if "extension" in document:
        lines.append(f"- The same small kernel: {document['extension']['forge_s'] * 1e3:.0f} ms here, {document['extension']['extension_s']:.1f} s "
                     f"as a torch C++ extension (`{document['extension']['command']}`, the same day).")
    return lines


def _repeatability(document: dict[str, Any]) -> list[str]:
    lines = ["| a kernel against itself | comparisons | called faster |", "|---|---|---|"]
    lines += [f"| {item['workload']} | {item['comparisons']} | {item['gains']} |" for item in document["selves"]]
    if "measured" in document:
        lines += ["", f"Measured by `{document['measured']['selves']}`."]
    for item in document["processes"]:
        lines.append(f"\nThe same winner in fresh processes, {item['workload']}: spread of the ratio {item['spread']:.1%} over {len(item['ratios'])}"
                     + (f" (`{document['measured']['processes']}`)." if "measured" in document else "."))
    return lines


def _robustness(document: dict[str, Any]) -> list[str]:
    counts = document["counts"]
    disturbed = sum(count["tried"] for name, count in counts.items() if name != "honest")
    return [f"{disturbed} kernels that disturb the worker in one run of {document['seconds']:.0f} s, an honest one after each; {document['workers']} "
            "workers were started.", "", "| kernel | tried | verdict as it must be |", "|---|---|---|",
            *(f"| {name} | {count['tried']} | {count['right']} |" for name, count in counts.items())]


def _selftest(document: dict[str, Any]) -> list[str]:
    return [f"{document['summary'].partition(': ')[2]}."]


def _exchange(document: dict[str, Any]) -> list[str]:
    lines = [document["note"], ""]
    for item in document["operators"]:
        characters = [entry["characters"] for entry in item["tries"] if entry["characters"]]
        lines += [f"{item['operator'].rpartition('.')[2]}: {item['prompts']} prompts ({sum(one['prompt'] for one in characters):,} characters), "
                  f"{item['replies']} replies ({sum(one['reply'] for one in characters):,}); "
                  f"{', '.join(f'{count} {name}' for name, count in item['outcomes'].items())}.", "",
                  "| try | from | strategy | outcome | us | speed-up over torch.compile |", "|---|---|---|---|---|---|"]
        for entry in item["tries"]:
            timing = entry["timing"] or {}
            interval = "[{:.2f}, {:.2f}]".format(*timing["speedup_interval"]) if timing else ""
            lines.append(f"| {entry['number']} | {entry['parent'] or ''} | {entry['strategy']} | {entry['outcome']} | "
                         f"{timing.get('us', 0):.2f} | {timing.get('speedup', 0):.2f} {interval} |")
    return lines


def _search(folder: Path) -> list[str]:
    """The policies on stored landscapes, those measured on a device first."""
    made = []
    for path in sorted(folder.glob("search-*.json"), key=lambda path: path.stem == "search-modelled"):
        document = json.loads(path.read_text())
        policies = document["policies"]
        marks = list(next(iter(policies.values()))["mean"])
        first, last = document["seeds"]
        same = document["same_choices_at_1000_times"]
        lines = [f"## Search: landscapes {document['landscapes_kind']}", "",
                 f"`{document['command']}`, {document['date'][:10]}: {len(document['landscapes'])} landscapes, "
                 f"{sum(item['points'] for item in document['landscapes'])} points, {last - first} seeds; times "
                 f"{document['landscapes'][0]['times']}. Best speed so far over the best there is, with its 95 % interval. With all times multiplied by "
                 f"1000 the same choices in {same['same']} of {same['searches']} searches.", "",
                 f"| policy | {' | '.join(f'at {mark}' for mark in marks)} |", "|---" * (len(marks) + 1) + "|"]
        for name in sorted(policies, key=lambda name: -policies[name]["mean"][marks[-1]]):
            found = policies[name]
            lines.append(f"| {name} | " + " | ".join(f"{found['mean'][mark]:.3f} ± {found['half_width'][mark]:.3f}" for mark in marks) + " |")
        made.append("\n".join(lines))
    return made


def _judging(folder: Path) -> list[str]:
    """A section a part of `benchmarks.judging`, devices below each other."""
    made = []
    for part, (title, section) in JUDGING.items():
        lines = []
        for path in sorted(folder.glob(f"judging-{part}-*.json")):
            document = json.loads(path.read_text())
            device = document["device"]["name"] if "device" in document else "host"
            lines += ["", f"`{document['command']}`, {document['date'][:10]}, torch {document['versions']['torch']}, on {device}.", "",
                      *([f"**Caveat.** {document['caveat']}", ""] if "caveat" in document else []), *section(document)]
        if lines:
            made.append("\n".join([f"## {title}", *lines]))
    return made


def _guards(folder: Path) -> list[str]:
    """What a package's guards cost the CPU."""
    path = folder / "guards-cpu.json"
    if not path.is_file():
        return []
    document = json.loads(path.read_text())
    pieces, rows = document["parts_of_a_match_us"], document["us"]
    lines = ["## Package: what a call costs the CPU", "",
             f"`{document['command']}`, {document['date'][:10]}, torch {document['versions']['torch']}, one core, other processes on the machine (load "
             f"{document['machine']['load']:.1f}). Microseconds of a call, the least of all rounds. A match is whole: guards, counter, allocation of the results "
             f"({pieces['allocation']:.2f} for one), arguments packed, and a call through ctypes ({pieces['driver']:.2f}) of a driver that does nothing. Eager "
             "is the call it replaces on a few elements on the CPU, which launches nothing.", "",
             "| kernel for | match | eager | match over eager |", "|---|---|---|---|"]
    lines += [f"| {name} | {row['matches']['least']:.2f} | {row['eager']['least']:.2f} | {row['matches']['least'] / row['eager']['least']:.0%} |"
              for name, row in rows.items()]
    kinds = list(next(iter(rows.values()))["does not match"])
    lines += ["", "What a call that does not match is late by, before a call has matched and after one has:", "",
              f"| kernel for | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for name, row in rows.items():
        cells = [f"{found['before a match']['least']:.2f}, {found['after one']['least']:.2f}" if found else "–"
                 for found in map(row["does not match"].get, kinds)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return ["\n".join(lines)]


def _refusals(document: dict[str, Any]) -> list[str]:
    dtypes = sorted({dtype for found in document["operators"].values() for dtype in found})
    lines = [f"{document['judgements']} judgements of correct builtin kernels over {len(document['operators'])} operators, every layout of the "
             f"tests and {', '.join(dtypes)}: **{len(document['refused'])} refused**, {document['skipped']} skipped."]
    if document["operators_without"]:
        lines.append(f"Operators with no judgement: {', '.join(document['operators_without'])}.")
    return lines + [f"- {item['kernel']} on {item['call']}, seed {item['seed']}: {item['sentence']}" for item in document["refused"]]


def _copies(document: dict[str, Any]) -> list[str]:
    lines = [f"Wrong copies of the right answer, over {len(document['operators'])} operators, accepted of those tried; in brackets how far the "
             "furthest accepted one lies from", "the truth, relative, in norm. Accepted ones lie within three times eager's own error and one "
             f"rounding of the dtype, but for **{len(document['unjust'])}**.", ""]
    names = list(dict.fromkeys(row["copy"] for row in document["rows"]))
    lines += [f"| dtype | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for dtype in dict.fromkeys(row["dtype"] for row in document["rows"]):
        rows = {row["copy"]: row for row in document["rows"] if row["dtype"] == dtype}
        cells = [f"{row['accepted']} of {row['tried']}" + (f" ({row['furthest']:.2g})" if row["accepted"] else "")
                 for row in (rows[name] for name in names if name in rows)]
        lines.append(f"| {dtype} | {' | '.join(cells)} |")
    return lines + [f"- {text}" for text in document["unjust"]]


def _repeats(document: dict[str, Any]) -> list[str]:
    return [f"{document['judgements']} judgements made again with the seed they recorded, {document['checks']} checks each time, the inputs of every "
            f"one compared by 64 bits of them: **{len(document['different'])} differ**.", *(f"- {text}" for text in document["different"])]


def _memory(document: dict[str, Any]) -> list[str]:
    return [f"One judgement at full size ({document['checks']} checks) of a softmax whose input and output are "
            f"{document['tensors_bytes'] / 2**21:.0f} MiB each (the kernel a function in torch: none of that size is interpreted): "
            f"peak {document['peak_bytes'] / 2**20:.0f} MiB, the captured input included, **{document['ratio']:.2f} times** the two tensors."]


JUDGING = {"refusals": ("Judging: correct kernels refused", _refusals), "copies": ("Judging: wrong copies accepted", _copies),
           "repeats": ("Judging: the same seed again", _repeats), "memory": ("Judging: memory", _memory)}


if __name__ == "__main__":
    main()
