"""The section of docs/measured.md on whole models."""

from __future__ import annotations

from typing import Any

from forge_tui.specs import short_name


def models(document: dict[str, Any]) -> list[str]:
    """Eager, torch.compile, forged, forged under compile: a table, then each model's own figures."""
    lines = ["A forward of each model at its true size with random weights, from the first launch to the last; speed-ups over eager with their "
             "99 % intervals.", "", "| model | eager ms | torch.compile | forged | forged under compile | goal | peak MiB eager, forged |",
             "|---|---|---|---|---|---|---|"]
    for name, model in document["models"].items():
        if "bench" not in model:
            lines.append(f"| {name} | | | not measured: {model['failed']} | | | |")
            continue
        by_name = {item["name"]: item for item in model["bench"]["contenders"]}
        goal = "" if model["goal"] is None else f"{model['goal']}: {'reached' if model['goal_reached'] else '**missed**'}"
        peaks = ", ".join(f"{(by_name[key]['peak_bytes'] or 0) / 2**20:.0f}" for key in ("eager", "forged"))
        lines.append(f"| {name} | {by_name['eager']['us'] / 1e3:.2f} | {_ratio(by_name.get('torch.compile'))} | {_ratio(by_name['forged'])} | "
                     f"{_ratio(by_name.get('forged under compile'))} | {goal} | {peaks} |")
    for name, model in document["models"].items():
        if "bench" in model:
            lines += ["", *_details(name, model)]
    return lines


def _ratio(item: dict[str, Any] | None) -> str:
    if item is None or item["speedup"] is None:
        return item["note"] if item else ""
    return "{:.2f} [{:.2f}, {:.2f}]".format(item["speedup"], *item["speedup_interval"])


def _details(name: str, model: dict[str, Any]) -> list[str]:
    bench, agreement = model["bench"], model["bench"]["agreement"]
    kernels = [item for item in bench["kernels"] if item["status"] == "kept"]
    searched = model.get("search", model["command"])
    text = (f"**{name}**, `{model['command']}`{'' if searched == model['command'] else f', after `{searched}`'}, {model['date'][:10]}: {len(kernels)} kernels kept, {len(bench['kernels']) - len(kernels)} dropped. "
            f"Outputs {agreement['forged_error']:.2g} from eager's")
    if agreement["forged_float64_error"] is not None:
        text += f"; {agreement['forged_float64_error']:.3g} from float64, eager's {agreement['eager_float64_error']:.3g}"
    if agreement.get("top1") is not None:
        text += (f"; the most likely token is eager's at {agreement['top1']:.1%} of {agreement['positions']} positions, teacher-forced loss "
                 f"{agreement['loss_forged']:.4f} beside {agreement['loss_eager']:.4f}")
    lines = [text + "."]
    if "caveat" in model:
        lines += [f"Caveat: {model['caveat']}"]
    rows = [f"{short_name(row['operator'])} {row['share']:.0%}" for row in model["time_goes_to"][:5] if row["share"]]
    return [*lines, f"Most of the operators' time in eager, regions beside what is in them: {', '.join(rows)}."]
