"""Every screen as text at three sizes, and docs/screens.md, which shows them.

`python -m tests.test_screen_texts` writes both anew.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from textual.binding import Binding

from benchmarks.screen_projects import SOURCE, candidate, doctor_cache, project, softmax, started
from forge_tui.app import ForgeApp, known_ids
from forge_tui.engine import events
from forge_tui.specs import Call, TensorSpec
from forge_tui.store.journal import JournalWriter

HERE = Path(__file__).parent
GOLDEN = HERE / "golden/screens"
PAGE = HERE.parent / "docs/screens.md"
SIZES = ((80, 24), (60, 20), (200, 60))
SHOWN = (80, 24)
"""In docs/screens.md."""
PLACE = "/home/user/projects"
"""As long as the scratch folder's name, so that lines break where they did."""

SCREENS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "launcher": (False, ()),
    "new project": (False, ("n", *"hf:o/n")),
    "doctor": (False, ("D",)),
    "operators": (True, ("down", "space")),
    "results": (True, ("r",)),
    "kernels: verdict": (True, ("space", "down", "enter")),
    "kernels: timing": (True, ("space", "down", "enter", "2")),
    "kernels: source": (True, ("space", "down", "enter", "3")),
    "kernels: diff": (True, ("space", "down", "enter", "4")),
    "kernels: profile": (True, ("space", "down", "enter", "5")),
    "kernels: reasoning": (True, ("space", "down", "enter", "6")),
    "export": (True, ("r", "x")),
    "jump": (True, ("space", "down", "enter", "apostrophe")),
    "help": (True, ("question_mark",)),
}
"""Whether a project is open, and the keys that lead there."""


@contextmanager
def scene() -> Iterator[Path]:
    """A user's home with a searched project and a new one, in a folder whose name has always the same length."""
    folder = Path(tempfile.mkdtemp(prefix="forge_", dir="/tmp"))
    try:
        home = folder / "home"
        doctor_cache(home)
        spec = TensorSpec("float16", (8, 128, 768), (98304, 768, 1))
        calls = [
            softmax(64),
            softmax(512),
            Call("torch.nn.functional.layer_norm", {"input": spec}, (spec,)),
            Call("torch.Tensor.view", {"input": spec}, (spec,)),
        ]
        paths, (key, *_) = project(folder / "encoder", calls)
        project(folder / "decoder", [softmax(32)])
        paths.kernels.mkdir()
        paths.kernel("a" * 64).write_text(SOURCE)
        paths.kernel("b" * 64).write_text(SOURCE.replace("out[0] = input[0]", "out[0] = __expf(input[0])"))
        at = time.time() - 3 * 86400
        with JournalWriter(paths.journal) as journal:
            for event in (
                started(at),
                events.Captured(at=at + 1, variants=4, offered=4, forward_us=900.0),
                events.Selected(at=at + 2, operators=(key,)),
                *(
                    event
                    for number in range(1, 10)
                    for event in candidate(
                        key, number, number // 2 or None, at + 3 + 20 * number, "ab"[number % 3 % 2] * 64
                    )
                ),
                events.OperatorDone(
                    at=at + 240, variant=key, status="won", reason="1.96x eager, interval [1.95, 1.97]", best=f"{key}/8"
                ),
                events.RunEnded(
                    at=at + 242,
                    run="r",
                    status="limit",
                    reason="the time limit was reached; run again to go on",
                    exit_code=5,
                ),
            ):
                journal.append(events.encode(event))
        (home / "state").mkdir()
        (home / "state/recent.json").write_bytes(
            msgspec.json.encode([{"root": str(folder / name), "opened": at} for name in ("encoder", "decoder")])
        )
        with patch.dict(os.environ, {"FORGE_HOME": str(home), "HOME": str(folder)}):
            os.environ.pop("NO_COLOR", None)
            here = Path.cwd()
            os.chdir(home)
            try:
                yield folder
            finally:
                os.chdir(here)
    finally:
        shutil.rmtree(folder)


def render(folder: Path, name: str, size: tuple[int, int]) -> str:
    """One screen as text."""
    opened, keys = SCREENS[name]

    async def run() -> str:
        app = ForgeApp(folder / "encoder" if opened else None)
        async with app.run_test(size=size) as pilot:
            await pilot.pause(0.1)
            for key in keys:
                await pilot.press(key)
                await pilot.pause(0.02)
            await pilot.pause(0.25)
            strips = app.screen._compositor.render_strips()
            text = "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)
        return re.sub(r"/tmp/forge_\w{8}", PLACE, text) + "\n"

    return asyncio.run(run())


def golden(name: str, size: tuple[int, int]) -> Path:
    return GOLDEN / f"{name.replace(': ', '-').replace(' ', '-')}-{size[0]}x{size[1]}.txt"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_every_screen_looks_as_it_did(size: tuple[int, int]) -> None:
    with scene() as folder:
        for name in SCREENS:
            assert render(folder, name, size) == golden(name, size).read_text(), (
                f"{name}: if it is right so, run python -m tests.test_screen_texts"
            )


def test_the_page_shows_these_screens_and_all_keys() -> None:
    assert PAGE.read_text() == page()


def page() -> str:
    """docs/screens.md, from the texts above and the bindings."""
    head, _, rest = PAGE.read_text().partition("<!-- screens -->\n") if PAGE.exists() else ("", "", "")
    parts = [head, "<!-- screens -->\n"]
    for name in SCREENS:
        parts.append(f"\n### {name.capitalize()}\n\n```text\n{golden(name, SHOWN).read_text()}```\n")
    parts.append(
        "\n## Keys\n\nThe name in the first column is what `[keys]` takes.\n\n| name | keys | what it does |\n|---|---|---|\n"
    )
    for binding in bindings():
        keys = binding.key.replace("|", "\\|").replace(",", ", ")
        parts.append(f"| `{binding.id}` | {keys} | {binding.tooltip or binding.description} |\n")
    return "".join(parts)


def bindings() -> list[Binding]:
    """All that have a name, in the order of their screens."""
    from forge_tui.app import binding_owners

    return [
        binding
        for owner in binding_owners()
        for binding in owner.BINDINGS
        if isinstance(binding, Binding) and binding.id in set(known_ids())
    ]


def write() -> None:
    """Take what the screens look like now as right."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    with scene() as folder:
        for name in SCREENS:
            for size in SIZES:
                golden(name, size).write_text(render(folder, name, size))
    PAGE.write_text(page())


if __name__ == "__main__":
    write()
