"""What doctor says, broken at words in narrow terminals: the command's report and the app's page, with nothing lost."""

from __future__ import annotations

import pytest

from forge_tui.engine.doctor import Diagnosis, Finding, render
from forge_tui.screens.doctoring import diagnosis_lines
from forge_tui.screens.widgets.lines import columns_of

LIBRARY = "(/opt/venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13)"
FINDINGS = Diagnosis(
    1,
    "0",
    (
        Finding("compiler", "ok", f"NVRTC 13.5 {LIBRARY}"),
        Finding("cccl", "ok", LIBRARY),
        Finding("compute-sanitizer", "note", "not installed", "winners are confirmed without it then; it comes with the toolkit"),
        Finding("ANTHROPIC_API_KEY", "missing", "not set", "export ANTHROPIC_API_KEY=... or write it to ~/.config/x, --provider-y"),
        Finding("cuda:0 ceilings", "ok", "copies 4.0 TB/s; launch 2.9 us; " * 4),
    ),
)  # fmt: skip


def said(diagnosis: Diagnosis) -> list[str]:
    return [word for item in diagnosis.findings for text in (item.found, item.fix) for word in text.split()]


@pytest.mark.parametrize("width", [50, 80, 100, 200])
def test_the_report_breaks_at_words_under_where_they_began_and_loses_none(width: int) -> None:
    lines = render(FINDINGS, width).splitlines()
    words = " ".join(lines).split()
    for word in said(FINDINGS):
        words.remove(word)  # whole, or this is a ValueError
    assert all(len(line) <= width or line.strip() == LIBRARY for line in lines)
    if width == 80:
        assert lines[1] == "ok      compiler           NVRTC 13.5" and lines[2] == LIBRARY.rjust(80)
        begins = {len(line) - len(line.lstrip()) for line in lines[1:] if line.startswith(" ") and LIBRARY not in line}
        assert begins == {27}


def test_a_report_that_no_terminal_reads_has_a_line_for_each_thing() -> None:
    assert len(render(FINDINGS).splitlines()) == 1 + len(FINDINGS.findings) + 2


@pytest.mark.parametrize("width", [40, 58, 78, 118])
def test_the_page_shows_every_letter_within_the_screen(width: int) -> None:
    lines = diagnosis_lines(FINDINGS, width)
    assert all(columns_of(line) <= width for line in lines)
    shown = "".join("".join(text for text, _ in line) for line in lines).replace(" ", "")
    assert all(word in shown for word in said(FINDINGS))
    assert width < 78 or LIBRARY in [text.strip() for line in lines for text, _ in line]  # whole where that fits
    assert "✗missingANTHROPIC_API_KEY" in shown and shown.index("✗missing") < shown.index("·note") < shown.index("✓ok")
    whole = " ".join("".join(text for text, _ in line) for line in lines).split()
    assert width < 58 or "--provider-y" in whole  # a command is no place for a line break
