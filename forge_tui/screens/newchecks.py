"""What stands in the new-project form: completed, checked as one types, told in a sentence for each field."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from forge_tui.engine.newproject import check_inputs, check_source, default_folder
from forge_tui.engine.providers import check_provider
from forge_tui.errors import ForgeError
from forge_tui.screens.doctoring import last_diagnosis
from forge_tui.store.paths import ProjectPaths

DTYPES = ("", "float32", "float16", "bfloat16", "float64")
KEYED = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}


@dataclass(frozen=True)
class Checked:
    """What is to be said of one field."""

    field: str
    good: bool
    text: str
    preview: str = ""
    """Inputs to be shown."""


def completion(value: str) -> str | None:
    """The first path that begins so, folders with a slash; None where there is none or nothing to complete."""
    head, colon, typed = value.rpartition(":") if value.split(":")[0] in ("text", "image", "audio") else ("", "", value)
    if not typed or typed.startswith("=") or value.startswith("hf:"):
        return None
    folder, begun = os.path.split(os.path.expanduser(typed))
    try:
        names = sorted(
            name for name in os.listdir(folder or ".") if name.startswith(begun) and (begun or not name.startswith("."))
        )
    except OSError:
        return None
    for name in names:
        if name != begun:
            slash = "/" if os.path.isdir(os.path.join(folder, name)) else ""
            return f"{head}{colon}{typed[: len(typed) - len(begun)]}{name}{slash}"
    return None


def check_form(form: dict[str, str]) -> list[Checked]:
    """Every field's verdict, and what the model will be given. Reads names and sizes, runs nothing."""
    found = [_check_source(form["source"]), _check_folder(form), _check_inputs(form)]
    if form["weights"] not in ("", "random"):
        there = Path(form["weights"]).expanduser().is_file()
        found.append(Checked("weights", there, "is there" if there else "there is no such file; or write random"))
    if form["dtype"] not in DTYPES:
        found.append(Checked("dtype", False, f"one of {', '.join(DTYPES[1:])}, or empty"))
    device = form["device"]
    known = device in ("auto", "host", "cuda") or (device.startswith("cuda:") and device[5:].isdigit())
    found.append(Checked("device", known, _device_words(device) if known else "auto, cuda:N or host"))
    found.append(_check_provider(form["provider"]))
    if form["budget"] and not _is_amount(form["budget"]):
        found.append(Checked("budget", False, "a number of dollars, or empty"))
    return found


def _check_source(source: str) -> Checked:
    if not source:
        return Checked("model", False, "where does the model come from? Type a path: the right arrow completes it")
    try:
        check_source(source)
    except ForgeError as error:
        return Checked("model", False, f"{error.message}; {error.cure}" if error.cure else error.message)
    if source.startswith("hf:"):
        return Checked("model", True, "from the hub's cache, or downloaded at capture")
    return Checked("model", True, "a name to import" if not Path(source).expanduser().exists() else "is there")


def _check_folder(form: dict[str, str]) -> Checked:
    root = project_root(form)
    if root is None:
        return Checked("folder", True, "named after the model")
    if ProjectPaths(root).is_project():
        return Checked(
            "folder", False, f"{root} is a project already: open it from the launcher, or name another folder"
        )
    if root.exists() and not root.is_dir():
        return Checked("folder", False, f"{root} is a file")
    return Checked("folder", True, f"{root} will be made")


def project_root(form: dict[str, str]) -> Path | None:
    """Where the project goes; None while neither folder nor source is known."""
    if form["folder"]:
        return Path(form["folder"]).expanduser().absolute()
    return default_folder(form["source"]) if form["source"] else None


def _check_inputs(form: dict[str, str]) -> Checked:
    spec = form["inputs"]
    if not spec:
        return Checked("inputs", True, "the source's own, else small ones made for the model's signature")
    try:
        check_inputs(spec, project_root(form) or Path.cwd())
    except ForgeError as error:
        return Checked("inputs", False, f"{error.message}; {error.cure}")
    return Checked("inputs", True, "", spec)


def _check_provider(name: str) -> Checked:
    try:
        check_provider(name)
    except ForgeError as error:
        return Checked("provider", False, f"{error.message}; {error.cure}")
    variable = KEYED.get(name)
    diagnosis = last_diagnosis()
    if variable is None or diagnosis is None:
        return Checked("provider", True, "needs no key" if variable is None else f"needs {variable}; ctrl+y tries it")
    finding = next((item for item in diagnosis.findings if item.name == variable), None)
    if finding is None or finding.status != "ok":
        return Checked(
            "provider",
            False,
            f"{variable}: {finding.found}; {finding.fix}"
            if finding
            else f"{variable}: not looked for; D in the launcher",
        )
    return Checked("provider", True, f"{variable} is {finding.found}; ctrl+y tries it, at no cost")


def _device_words(device: str) -> str:
    diagnosis = last_diagnosis()
    gpus = [item for item in diagnosis.findings if item.name.startswith("cuda:")] if diagnosis else []
    if device == "host" or (device == "auto" and diagnosis and not gpus):
        return "interpreted on the CPU: checks are real, times are modelled"
    return "; ".join(f"{item.name} {item.found}" for item in gpus) or "found out at capture"


def _is_amount(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False
