"""Replies while they are written: what each provider tells, the file that a watcher reads, and what is left of it."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import chat_server
import pytest
from messages_server import cut, serve, thinking_reply, tool_reply
from scripted import SOFTMAX, ScriptedJudge, kernel, make_project, write_writer
from test_providers import REPLY, make_ask

from forge_tui.cuda.device import H200
from forge_tui.engine import events
from forge_tui.engine.forge import run
from forge_tui.engine.options import RunOptions
from forge_tui.engine.providers import open_provider
from forge_tui.engine.providers.live import LiveReplies, ToolText, live_file
from forge_tui.store.paths import ProjectPaths


class Heard:
    """What a listener was told."""

    def __init__(self) -> None:
        self.begins, self.reasoning, self.text = 0, "", ""

    def begun(self, ask: str) -> None:
        self.begins, self.reasoning, self.text = self.begins + 1, "", ""

    def came(self, ask: str, text: str, reasoning: bool) -> None:
        if reasoning:
            self.reasoning += text
        else:
            self.text += text


def heard(name: str, url: str = "", llm: str = "") -> tuple[Heard, object]:
    provider = open_provider(name, paths=ProjectPaths("."), device=H200, llm=llm)
    provider.listener = listener = Heard()
    return listener, provider.propose(make_ask(), threading.Event())


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("FORGE_HOME", str(tmp_path / "home"))


def test_thinking_and_text_of_anthropic_are_told_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(thinking_reply("rows are short: one warp each", REPLY)) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        listener, reply = heard("anthropic")
    assert listener.reasoning == reply.reasoning == "rows are short: one warp each"
    assert listener.text == reply.text and reply.source == kernel("verified 20")


def test_a_kernel_given_by_tool_is_told_as_text_and_a_cut_reply_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    source = kernel("verified 20", 'a "quoted" word') * 5
    with serve(cut(REPLY), tool_reply("vector loads", source)) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        listener, _ = heard("anthropic")
    assert listener.begins == 2
    assert listener.text.startswith("vector loads\n\n/*forge") and '"quoted"' in listener.text
    assert source.startswith(listener.text.removeprefix("vector loads\n\n"))


def test_halves_of_escapes_and_characters_never_show() -> None:
    whole = {"idea": 'a "b"\n\\ é 漢', "kernel": "int x;\n" * 40}
    document, words, text = json.dumps(whole), ToolText(), ""
    for character in document:
        text += words.more(character)
        assert "\n\n".join(whole.values()).startswith(text)
    assert len(text) > 200


def test_reasoning_of_openai_servers_is_told_and_kept() -> None:
    def answer(handler: object) -> None:
        chat_server.begin(handler)
        chat_server.chunk(handler, reasoning_content="think ")
        chat_server.chunk(handler, reasoning="more")
        chat_server.chunk(handler, content=REPLY)
        chat_server.chunk(handler, "stop")
        chat_server.data(handler, "[DONE]")

    with serve(answer) as server:
        listener, reply = heard(f"openai:http://127.0.0.1:{server.server_port}/v1", llm="m")
    assert listener.reasoning == reply.reasoning == "think more"
    assert listener.text == reply.text == REPLY


def test_a_program_s_words_are_told_while_it_writes(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        "import sys, pathlib, time\nprint('first words', flush=True)\n"
        f"gate = pathlib.Path({str(tmp_path / 'gate')!r})\n"
        "while not gate.exists(): time.sleep(0.02)\nprint('last words')\n"
    )

    class Opens(Heard):
        def came(self, ask: str, text: str, reasoning: bool) -> None:
            super().came(ask, text, reasoning)
            (tmp_path / "gate").touch()  # the program ends only after its first words were heard

    provider = open_provider(f"command:{sys.executable} {script}", paths=ProjectPaths("."), device=H200)
    provider.listener = listener = Opens()
    reply = provider.propose(make_ask(), threading.Event())
    assert listener.text.startswith("first words") and reply.text == "first words\nlast words\n"


def test_the_file_has_reasoning_then_reply_and_goes_with_the_reply(tmp_path: Path) -> None:
    live = LiveReplies(tmp_path)
    live.begun("k-1")
    live.came("k-1", "why", True)
    live.came("k-1", " so", True)
    live.came("k-1", "code", False)
    assert live_file(tmp_path, "k-1").read_text() == "## reasoning\n\nwhy so\n\n## reply\n\ncode"
    live.begun("k-1")
    assert live_file(tmp_path, "k-1").read_text() == ""
    live.ended("k-1")
    assert not list(tmp_path.iterdir())
    LiveReplies(tmp_path / "file" / "below").begun("k-1")  # cannot be made: nobody is disturbed


def test_a_run_leaves_no_live_file_and_a_killed_one_s_is_cleared(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=1)
    paths.replies.mkdir()
    live_file(paths.replies, "old-1").write_text("of a run that was killed")
    seen: list[events.AnyEvent] = []
    options = RunOptions(device="host", seeds=False, package=False, provider=write_writer(tmp_path, kernel("verified 2")))
    run(paths, config, options, seen.append, ScriptedJudge().open)
    assert any(isinstance(event, events.Judged) for event in seen)
    assert not list(paths.replies.glob("*.live"))
