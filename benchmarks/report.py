"""`python -m benchmarks.report`: writes docs/measured.md from the files under benchmarks/results/, so that no figure is typed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    for name, section in (("operators", _operators), ("turnaround", _turnaround), ("repeatability", _repeatability)):
        for path in sorted(folder.glob(f"{name}-*.json")):
            document = json.loads(path.read_text())
            parts.append("\n".join([*_about(name, document), "", *section(document)]))
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
    if any(row.get("compile_baseline") == "not measured" for row in document["rows"]):
        lines += ["", "\\* torch.compile was not measured on this row."]
    return lines


def _turnaround(document: dict[str, Any]) -> list[str]:
    build = document["build"]
    lines = [f"- Build of one candidate: median {build['median_s'] * 1e3:.0f} ms, worst {build['worst_s'] * 1e3:.0f} ms ({build['worst']}), "
             f"over {len(build['seconds'])} builtin kernels."]
    lines += [f"- {item['kernel']} on an operator of {item['us']:.0f} us, {item['run']}: {item['outcome']} in {item['seconds']:.2f} s with "
              f"{item['points']} settings, of which builds {item['build_s']:.2f} s." for item in document["judgement"]]
    if "extension" in document:
        lines.append(f"- The same small kernel: {document['extension']['forge_s'] * 1e3:.0f} ms here, {document['extension']['extension_s']:.1f} s "
                     "as a torch C++ extension.")
    return lines


def _repeatability(document: dict[str, Any]) -> list[str]:
    lines = ["| a kernel against itself | comparisons | called faster |", "|---|---|---|"]
    lines += [f"| {item['workload']} | {item['comparisons']} | {item['gains']} |" for item in document["selves"]]
    for item in document["processes"]:
        lines.append(f"\nThe same winner in fresh processes, {item['workload']}: spread of the ratio {item['spread']:.1%}.")
    return lines


if __name__ == "__main__":
    main()
