"""What the documentation says was measured is what the files under benchmarks/results/ hold."""

from __future__ import annotations

import json

from benchmarks.report import TARGET, render
from benchmarks.results import FOLDER


def test_the_page_of_measurements_is_made_from_the_files() -> None:
    assert TARGET.read_text() == render(FOLDER), "run `python -m benchmarks.report`"


def test_every_result_says_what_it_was_measured_with() -> None:
    for path in FOLDER.glob("*.json"):
        document = json.loads(path.read_text())
        where = document.get("device") or document.get("machine")
        assert where and document["date"] and document["command"].startswith(("python -m benchmarks.", "forge-tui ")), path
