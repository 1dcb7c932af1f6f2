"""The app on real project files: what the screens show, keys that say why they cannot."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from forge_tui.cuda.device import H200
from forge_tui.engine import events
from forge_tui.engine.cards import FORMAT, CallForm, OperatorFile, Variant, save_operators, variant_key
from forge_tui.engine.doctor import Diagnosis, Finding
from forge_tui.engine.judge.verdict import Check, Timing, Verdict
from forge_tui.specs import Call, TensorSpec
from forge_tui.store.journal import JournalWriter
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import ModelConfig, ProjectConfig, create_project

SPEC = TensorSpec("float32", (64, 384), (384, 1))
SOURCE = '/*forge\nformat = 1\n*/\nextern "C" __global__ void softmax_rows() {}\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORGE_HOME", str(tmp_path / "home"))
    (tmp_path / "home/cache").mkdir(parents=True)
    (tmp_path / "home/cache/doctor.json").write_bytes(
        msgspec.json.encode(Diagnosis(1, "0", (Finding("host", "ok", "2 cores"),)))
    )
    root = tmp_path / "encoder"
    create_project(root, ProjectConfig(format=1, model=ModelConfig(source="hf:some/encoder")))
    paths = ProjectPaths(root)
    calls = [
        Call("torch.nn.functional.softmax", {"input": SPEC, "dim": -1}, (SPEC,)),
        Call("torch.matmul", {"input": SPEC}, (SPEC,)),
    ]
    variants = tuple(
        Variant(
            variant_key(call),
            call,
            6,
            12.5,
            1 << 20,
            0,
            4.0,
            {},
            (),
            ("",),
            (CallForm(call.operator, (), {}, ()),),
            offered=offered,
            reason=reason,
        )
        for call, offered, reason in zip(calls, (True, False), ("", "a view moves no data"), strict=True)
    )
    save_operators(
        paths, OperatorFile(FORMAT, "encoder: 1 M parameters, float32", H200, "cpu", 100.0, variants, (), "2.13.0")
    )
    key = variants[0].key
    paths.kernels.mkdir()
    digest = "a" * 64
    paths.kernel(digest).write_text(SOURCE)
    verdict = Verdict(
        "verified",
        "right on 2 captured samples",
        (Check("samples", True, 1e-8, 1e-7),),
        timing=Timing("modelled", 4.4),
        settings={"BLOCK": 128},
    )
    with JournalWriter(paths.journal) as journal:
        for event in (
            events.RunStarted(
                at=1.0,
                run="r",
                host="node",
                pid=1,
                version="0",
                provider="builtin",
                llm="",
                policy="uct",
                seed=1,
                device="host",
                target="host",
                iterations=4,
            ),
            events.Selected(at=1.5, operators=(key,)),
            events.Proposed(at=2.0, node=f"{key}/1", variant=key, parent=None, strategy="tiling", provider="builtin"),
            events.Replied(at=3.0, node=f"{key}/1", kernel=digest, idea="a block a row", cost_usd=0.0),
            events.Judged(at=4.0, node=f"{key}/1", verdict=verdict, value=0.0),
            events.OperatorDone(at=5.0, variant=key, status="verified", reason="4.4 us modelled", best=f"{key}/1"),
            events.RunEnded(at=6.0, run="r", status="done", reason="", exit_code=0),
        ):
            journal.append(events.encode(event))
    return root


def screen_text(app: object) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


def drive(root: Path | None, size: tuple[int, int], *steps: str) -> list[str]:
    """The screen after each step (`` for none: as it opens)."""
    from forge_tui.app import ForgeApp

    async def run() -> list[str]:
        app, shown = ForgeApp(root), []
        async with app.run_test(size=size, notifications=True) as pilot:
            for step in ("", *steps):
                if step:
                    await pilot.press(step)
                await pilot.pause(0.1)
                shown.append(screen_text(app))
        return shown

    return asyncio.run(run())


@pytest.mark.parametrize("size", [(80, 24), (60, 20), (200, 60)])
def test_operator_and_kernel_bench_show_what_the_journal_says(project: Path, size: tuple[int, int]) -> None:
    operators, kernels, source = drive(project, size, "enter", "3")
    assert "softmax [64, 384]" in operators and "✓ verified" in operators and "4.4 us" in operators
    assert "✓ done" in operators
    assert "★ 1 a block a row" in kernels and "right on 2 captured samples" in kernels
    assert "softmax_rows" in source


def test_an_action_that_cannot_be_done_says_why(project: Path) -> None:
    shown = drive(project, (140, 40), "down", "f", "s")
    assert "a view moves no data" in shown[2]
    assert "no run holds" in shown[3], shown[3]


def test_help_lists_the_keys_of_the_screen(project: Path) -> None:
    assert "forge all" in drive(project, (100, 40), "question_mark")[1]


def test_launcher_lists_recent_projects_and_an_empty_one_names_the_next_key(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge_tui.store.recent import remember

    monkeypatch.chdir(tmp_path / "home")
    assert "press n" in drive(None, (80, 24))[0]
    remember(project)
    shown = drive(None, (80, 24), "enter")
    assert "encoder" in shown[0] and "1 of 1" in shown[0]
    assert "softmax" in shown[1]


def test_the_app_process_never_loads_torch(project: Path) -> None:
    code = (
        "import sys, asyncio; from pathlib import Path; sys.path.insert(0, 'tests'); import test_app;"
        "test_app.drive(Path(sys.argv[1]), (80, 24), 'enter', '3'); sys.exit('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": "."}
    assert subprocess.run([sys.executable, "-c", code, str(project)], check=False, env=environment).returncode == 0
