"""Bytes that are no text, keys typed ahead of a screen's end, and an error of the app itself: in a pseudo-terminal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.screen_projects import doctor_cache, many_nodes_project
from benchmarks.terminals import KEY_QUIET_S, terminal


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    doctor_cache(folder)
    return folder


def test_bytes_that_are_not_utf_8_are_no_keys(tmp_path: Path, home: Path) -> None:
    with terminal(str(many_nodes_project(tmp_path, 5)), home=home, cwd=tmp_path) as app:
        app.until("softmax")
        app.quiet(KEY_QUIET_S)
        os.write(app.handle, b"/")
        app.until("filter: words")
        for sent in (b"\xff", b"\xe9j", b"\x1b[M \xa0!", bytes(range(128, 256)), b"\xc2\x9b\xed\xa0\x80", b"\xe2\x82"):
            os.write(app.handle, sent)
            app.quiet(KEY_QUIET_S)
        app.press(b"zzz")
        assert "jzzz" in app.text().replace("\u009b", "") and "\ufffd" not in app.text()
        app.press(b"\x1b")
        app.press(b"\x11")  # ctrl+q
        assert app.wait() == 0
        assert b"Traceback" not in app.received and b"\x1b[?1049l" in app.received


@pytest.mark.parametrize(
    "burst",
    [
        b"?q\r\r\r", b":back\r\r\r", b":leave;\r\r", b"\x1b\x1b\x1b", b"'\x1b\x1b\x1b", b"qqq", b"\x14\r\r\r", b"\r\r\r",
        b"osq\x1b\x1b",
    ],
)
def test_keys_typed_ahead_of_a_screens_end_do_no_harm(tmp_path: Path, home: Path, burst: bytes) -> None:
    with terminal(str(many_nodes_project(tmp_path, 5)), home=home, cwd=tmp_path) as app:
        app.until("softmax")
        app.quiet(KEY_QUIET_S)
        for byte in burst[:1], burst[1:]:
            os.write(app.handle, byte)
            app.read(0.3)
        app.quiet(KEY_QUIET_S)
        os.write(app.handle, b"\x11")
        assert app.wait() == 0
        assert b"Traceback" not in app.received and b"internal error" not in app.received


def test_an_error_of_the_app_is_one_line_and_a_log(tmp_path: Path, home: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from forge_tui.app import ForgeApp\nForgeApp.action_redraw = lambda self: {}['secret']\n"
    )
    paths = f"{os.getcwd()}{os.pathsep}{tmp_path}"
    with terminal(str(many_nodes_project(tmp_path, 5)), home=home, cwd=tmp_path, PYTHONPATH=paths) as app:
        app.until("softmax")
        app.quiet(KEY_QUIET_S)
        os.write(app.handle, b"\x0c")
        assert app.wait() == 70
        logs = list(home.rglob("crash-*.log"))
        said = app.received.rpartition(b"\x1b[?1049l")[2].decode()
        assert len(logs) == 1 and "KeyError: 'secret'" in logs[0].read_text()
        assert "internal error: KeyError: 'secret'" in said and "crash-" in said
        assert "Traceback" not in said and "locals" not in said and "\x1b[?25h" in said
