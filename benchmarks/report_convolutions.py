"""The section of docs/measured.md on convolutions."""

from __future__ import annotations

from typing import Any

from forge_tui.specs import short_name


def convolutions(document: dict[str, Any]) -> list[str]:
    """A row a layer, then what they come to in the network."""
    lines = ["conv2d + batch_norm + relu of ResNet-50 at 224 pixels and batch 1, one kernel beside eager's three. Microseconds of a call; of the kernel with the",
             "first setting of its file and with the fastest of those tried (TILE_M, TILE_N, TILE_K, WARPS_M, WARPS_N, SPLIT, STAGES; which in the file's order).",
             "Errors are in norm, relative, against float64. The CPU time of the kernel is that of its launch alone, without the guards of a package.", "",
             "| layer | in the network | eager | its CPU | first | best | its CPU | setting | error | eager's | without TF32 |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for item in document["rows"]:
        name = f"{item['layer']} {item['dtype']}"
        before = f"{item['count']} | {item['eager_us']:.1f} | {item['eager_cpu_us']:.0f}"
        if "best_us" not in item:
            lines.append(f"| {name} | {before} | none ran | | | | | | |")
            continue
        setting = f"{', '.join(str(value) for value in item['best'].values())} ({item['guess'] + 1} of {len(item['settings'])})"
        lines.append(f"| {name} | {before} | {item['first_us']:.1f} | {item['best_us']:.1f} | {item['cpu_us']:.1f} | {setting} | {item['error']:.1e} | "
                     f"{item['eager_error']:.1e} | {item['eager_error_no_tf32']:.1e} |")
    sums = document["sums"]
    lines += ["", f"The {sums['layers']} float32 convolutions of the network that are in the table: eager {sums['eager_us']:.0f} us and "
              f"{sums['eager_cpu_us']:.0f} us of CPU time; the kernel {sums['first_us']:.0f} us with first settings, **{sums['best_us']:.0f} us** with the best, "
              f"{sums['cpu_us']:.0f} us of CPU time."]
    if "chain_graph_us" in sums:
        lines[-1] += f" All in a row as one graph: {sums['chain_graph_us']:.0f} us" + (
            f", {sums['chain_warm_graph_us']:.0f} us with the caches warm." if "chain_warm_graph_us" in sums else ".")
    if "at_batch_32" in document:
        lines += _batch_32(document["at_batch_32"])
    return lines


def _batch_32(found: dict[str, Any]) -> list[str]:
    """Layers at batch 32, where the kernel loses; with the search that found it, before they were offered no more."""
    lines = ["", f"At batch 32, float32 (`{found['command']}`, {found['date'][:10]}; {found['caveat']}):", "",
             "| call | in the network | eager | kernel | over eager |", "|---|---|---|---|---|"]
    for row in found["rows"]:
        low, high = row["interval"]
        lines.append(f"| {short_name(row['operator'])} {row['variant'][:4]} | {row['calls']} | {row['baseline_us']:.1f} | {row['us']:.1f} | "
                     f"{row['speedup']:.2f} [{low:.2f}, {high:.2f}] |")
    return lines
