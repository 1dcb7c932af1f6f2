"""The `anthropic` provider against a server that speaks the protocol, in all the ways that it can go wrong."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest
from messages_server import cut, drip, garbage, overloaded_within, reply, serve, status, tool_reply
from scripted import SOFTMAX, ScriptedJudge, kernel, make_project
from test_providers import REPLY, make_ask

from forge_tui.cuda.device import H200
from forge_tui.engine.forge import run
from forge_tui.engine.options import RunOptions
from forge_tui.engine.providers import Cancelled, open_provider
from forge_tui.engine.providers.prices import find_price
from forge_tui.engine.state import load_state
from forge_tui.errors import MissingEnvironment, ProjectError, ProviderError
from forge_tui.store.paths import ProjectPaths

KEY = "sk-test-0123456789-never-to-be-seen"


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("FORGE_HOME", str(tmp_path / "home"))
    for name in ("ANTHROPIC_AUTH_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def propose(monkeypatch):
    """Ask the provider, with the server's answers in order."""

    def ask(*answers, deadline_s: float = 60.0, cancel: threading.Event | None = None):
        with serve(*answers) as server:
            monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
            provider = open_provider("anthropic", paths=ProjectPaths("."), device=H200)
            provider.deadline_s = deadline_s
            try:
                return provider.propose(make_ask(), cancel or threading.Event()), server.requests
            finally:
                ask.requests = server.requests

    return ask


def test_a_streamed_reply_with_tokens_and_cost(propose) -> None:
    answer, requests = propose(reply(REPLY))
    assert answer.source == kernel("verified 20") and answer.problem == "" and answer.model == "claude-opus-5-5"
    assert (answer.tokens_in, answer.tokens_out) == (2100, 50)
    assert answer.cost_usd == pytest.approx((100 * 4 + 2000 * 0.2 + 50 * 20) / 1e6)
    headers, body = requests[0]
    assert body["stream"] is True and body["model"] == "claude-opus-5-5"
    assert body["system"][-1]["cache_control"] == {"type": "ephemeral"} and "softmax" in body["messages"][0]["content"]


def test_a_reply_through_the_tool(propose) -> None:
    source = kernel("verified 20", "has ``` and ~~~~ in it")
    answer, requests = propose(tool_reply("Wider loads.", source))
    assert answer.source == source and answer.idea == "Wider loads." and answer.problem == ""
    assert requests[0][1]["tools"][0]["name"] == "submit_kernel" and "thinking" not in requests[0][1]
    cut_short, _ = propose(tool_reply("Wider loads.", source, "max_tokens", keep=0.9))
    assert cut_short.source is None and "cut at 32000 tokens" in cut_short.problem


@pytest.mark.parametrize(
    ("option", "sent"), [("adaptive", {"type": "adaptive"}), ("4096", {"type": "enabled", "budget_tokens": 4096})]
)
def test_extended_thinking_is_asked_for(monkeypatch, option: str, sent: dict) -> None:
    with serve(reply(REPLY)) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        provider = open_provider("anthropic", paths=ProjectPaths("."), device=H200, thinking=option)
        assert provider.propose(make_ask(), threading.Event()).source
        assert server.requests[0][1]["thinking"] == sent
    with pytest.raises(ProjectError, match="no way to think"):
        open_provider("anthropic", paths=ProjectPaths("."), device=H200, thinking="12")


def test_every_answer_that_may_be_tried_again_is(propose) -> None:
    answer, requests = propose(status(429, "1"), status(529), status(500), reply(REPLY))
    assert answer.source and len(requests) == 4


@pytest.mark.parametrize("bad", [cut(REPLY), garbage, overloaded_within], ids=["cut", "garbage", "overloaded"])
def test_a_stream_that_breaks_is_begun_anew(propose, bad) -> None:
    answer, requests = propose(bad, reply(REPLY))
    assert answer.source == kernel("verified 20") and len(requests) == 2


def test_a_stream_that_always_breaks_fails(propose) -> None:
    with pytest.raises(ProviderError, match="the service failed"):
        propose(cut(REPLY))
    assert len(propose.requests) == 3


@pytest.mark.parametrize(("code", "words"), [(401, "check the key"), (404, "choose another"), (400, "told to")])
def test_what_no_retry_mends_fails_at_once(propose, code: int, words: str) -> None:
    with pytest.raises(ProviderError) as caught:
        propose(status(code))
    assert words in str(caught.value) and f"status {code}" in str(caught.value) and len(propose.requests) == 1


def test_the_key_is_in_no_error(propose) -> None:
    with pytest.raises(ProviderError) as caught:
        propose(status(401, message=f"the key {KEY} is wrong"))
    assert KEY not in str(caught.value) and caught.value.__cause__ is None and "***" in str(caught.value)


def test_a_slow_drip_ends_at_the_deadline_and_at_a_cancel(propose) -> None:
    with pytest.raises(ProviderError, match="no complete reply within 0.5 s"):
        propose(drip, deadline_s=0.5)
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    begun = time.monotonic()
    with pytest.raises(Cancelled):
        propose(drip, cancel=cancel)
    assert time.monotonic() - begun < 30, "not at the deadline of a minute"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reply("I cannot help with that.", "refusal"), "refused"),
        (reply(""), "empty"),
        (reply(REPLY[:-8], "max_tokens"), "cut at 32000 tokens"),
        (reply("x" * (2 << 20)), "no kernel file"),
    ],
    ids=["refusal", "empty", "truncated", "2 MiB"],
)
def test_complete_messages_that_are_no_kernel(propose, answer, words: str) -> None:
    got, _ = propose(answer)
    assert got.source is None and words in got.problem and got.cost_usd > 0, "it is paid for all the same"


def test_a_key_is_needed_and_its_file_must_be_private(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(MissingEnvironment, match="no key for anthropic"):
        open_provider("anthropic", paths=ProjectPaths(tmp_path), device=H200)
    file = tmp_path / "home" / "config" / "keys" / "anthropic"
    file.parent.mkdir(parents=True)
    file.write_text(KEY + "\n")
    file.chmod(0o644)
    with pytest.raises(MissingEnvironment, match="others may read"):
        open_provider("anthropic", paths=ProjectPaths(tmp_path), device=H200)
    file.chmod(0o600)
    assert open_provider("anthropic", paths=ProjectPaths(tmp_path), device=H200).llm == "claude-opus-5-5"


def test_prices_come_from_the_users_table_first_and_may_be_unknown(tmp_path: Path) -> None:
    assert find_price("a-model-of-next-year") is None and find_price("claude-opus-5-5").output == 20
    own = tmp_path / "home" / "config" / "prices.toml"
    own.parent.mkdir(parents=True)
    own.write_text('["claude-opus-5-5"]\ninput = 1\noutput = 2\ncache_write = 1\ncache_read = 0\n')
    assert find_price("claude-opus-5-5").output == 2 and find_price("claude-opus-5").output == 25
    own.write_text('["x"]\ninput = "free"\n')
    with pytest.raises(ProjectError, match="no price table"):
        find_price("x")


def test_a_run_keeps_its_budget_and_leaks_no_key(monkeypatch, tmp_path: Path, caplog) -> None:
    """Each reply costs 0.0018 dollars: three fit into 0.006."""
    caplog.set_level(logging.DEBUG)
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=12)
    replies = [reply(REPLY.replace("verified 20", f"verified {number}")) for number in range(30, 10, -1)]
    with serve(*replies) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        result = run(
            paths,
            config,
            RunOptions(device="host", seeds=False, package=False, provider="anthropic", budget_usd=0.006),
            open_judge=ScriptedJudge().open,
        )
    assert result.status == "limit" and len(server.requests) == 3
    assert result.cost_usd == pytest.approx(3 * 0.0018) and result.tokens == 3 * 2150
    assert result.operators[0].status == "verified" and result.operators[0].best_us == 28
    assert load_state(paths).ended.exit_code == 5
    again = run(
        paths,
        config,
        RunOptions(device="host", seeds=False, package=False, provider="anthropic", budget_usd=0.006),
        open_judge=ScriptedJudge().open,
    )
    assert again.status == "limit" and again.cost_usd == result.cost_usd, "with no server there: nothing was asked"
    for path in paths.root.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    assert KEY not in caplog.text
