"""What is said of a candidate, as lines: code, diffs, heat tables, shapes, Markdown."""

from __future__ import annotations

from pathlib import Path

from screenkit import home, read  # noqa: F401

from benchmarks.screen_projects import candidate, project, softmax
from forge_tui.engine import events
from forge_tui.engine.judge.verdict import Point
from forge_tui.screens.candidate import heat_table
from forge_tui.screens.code import highlighted, side_by_side, unified
from forge_tui.screens.markdown import rendered
from forge_tui.screens.shapes import shape_lines
from forge_tui.store.journal import JournalWriter


def test_one_kernel_is_shown_over_the_shapes_of_its_operator(tmp_path: Path) -> None:
    paths, keys = project(tmp_path / "encoder", [softmax(64), softmax(512)])
    with JournalWriter(paths.journal) as journal:
        for number, key in enumerate(keys, 1):
            for event in candidate(key, number, None, 1.0, "a" * 64):
                journal.append(events.encode(event))
    watch = read(paths.root)
    node = watch.state.node(f"{keys[0]}/1")
    rows = ["".join(text for text, _ in line) for line in shape_lines(watch, node, keys[0])]
    times = {key: f"{watch.state.operators[key].best.us:.1f} us" for key in keys}
    assert rows[2].startswith("▸ [64, 384]") and rows[2].count(times[keys[0]]) == 2
    assert rows[3].startswith("  [512, 384]") and rows[3].count(times[keys[1]]) == 2


def test_markdown_is_read_with_its_code_and_lists() -> None:
    text = "# Plan\n\n- one `x` and **two** more words than fit\n\n```cuda\nint x;\n```\nend"
    lines = rendered(text, 24)
    plain = ["".join(span for span, _ in line) for line in lines]
    assert plain[0] == "Plan" and plain[2].startswith("- one x and two") and plain[3].startswith("  ")
    assert "  int x;" in plain and plain[-1] == "end"
    assert ("x", "accent") in lines[2] and ("two", "bold") in lines[2]
    assert any(token == "code-type" for line in lines for _, token in line)


def test_a_comment_over_lines_is_a_comment_on_each() -> None:
    lines = highlighted("/* one\ntwo */\nint x;\n")
    assert [line[0][1] for line in lines] == ["code-comment", "code-comment", "code-type"]


def test_both_diffs_show_what_differs_also_in_long_lines() -> None:
    old, new = "a\n" + "x" * 100 + "1\nb\n", "a\n" + "x" * 100 + "2\nb\n"
    flat = ["".join(text for text, _ in line) for line in unified(old, new, "old", "new")]
    assert "-" + "x" * 100 + "1" in flat and "+" + "x" * 100 + "2" in flat
    beside = ["".join(text for text, _ in line) for line in side_by_side(old, new, "old", "new", 61)]
    assert any("x1" in line and "x2" in line for line in beside)
    assert unified(old, old, "old", "new") == []


def test_the_heat_table_has_the_fastest_of_each_cell() -> None:
    points = tuple(
        Point({"BLOCK": block, "VEC": vec, "ITEMS": items}, float(block * vec + items))
        for block in (1, 2)
        for vec in (1, 3)
        for items in (5,)
    ) + (Point({"BLOCK": 2, "VEC": 3, "ITEMS": 5}, None),)
    rows = ["".join(text for text, _ in line) for line in heat_table(points)]
    assert (
        rows[0].split()[-2:] == ["1", "3"]
        and rows[1].split() == ["1", "6.00*", "8.00"]
        and rows[2].split() == ["2", "7.00", "11.00"]
    )
    assert heat_table(points[:1]) == []
