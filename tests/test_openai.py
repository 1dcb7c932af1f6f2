"""The `openai` provider against a server that speaks the protocol, in all the ways that it can go wrong."""

from __future__ import annotations

import logging
import threading
import time
from email.utils import formatdate
from pathlib import Path

import pytest
from chat_server import cut, drip, failing_within, garbage, reply, status, whole
from messages_server import serve
from scripted import SOFTMAX, ScriptedJudge, kernel, make_project
from test_providers import REPLY, make_ask

from forge_tui.cuda.device import H200
from forge_tui.engine.forge import run
from forge_tui.engine.options import RunOptions
from forge_tui.engine.providers import Cancelled, openai, open_provider
from forge_tui.errors import MissingEnvironment, ProjectError, ProviderError
from forge_tui.store.paths import ProjectPaths

KEY = "sk-test-0123456789-never-to-be-seen"


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("FORGE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(openai, "FIRST_DELAY_S", 0.001)
    for name in ("OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def propose():
    """Ask the provider, with the server's answers in order."""

    def ask(
        *answers,
        llm: str = "claude-sonnet-5",
        deadline_s: float = 60.0,
        cancel: threading.Event | None = None,
        models: tuple[str, ...] = ("only-one",),
    ):
        with serve(*answers) as server:
            server.models = models
            provider = open_provider(
                f"openai:http://127.0.0.1:{server.server_port}/v1", paths=ProjectPaths("."), device=H200, llm=llm
            )
            provider.deadline_s = deadline_s
            try:
                return provider.propose(make_ask(), cancel or threading.Event()), server.requests
            finally:
                ask.requests = server.requests

    return ask


def test_a_streamed_reply_with_tokens_and_cost(propose) -> None:
    answer, requests = propose(reply(REPLY))
    assert answer.source == kernel("verified 20") and answer.problem == "" and answer.model == "claude-sonnet-5"
    assert (answer.tokens_in, answer.tokens_out) == (2100, 50)
    assert answer.cost_usd == pytest.approx((100 * 2 + 2000 * 0.2 + 50 * 10) / 1e6)
    headers, body = requests[0]
    assert body["stream"] is True and body["stream_options"] == {"include_usage": True}
    assert [message["role"] for message in body["messages"]] == ["system", "user"] and "softmax" in body["messages"][1][
        "content"
    ]
    assert {name.lower(): value for name, value in headers.items()}["authorization"] == f"Bearer {KEY}"


def test_a_model_without_a_price_or_usage_costs_what_is_unknown(propose) -> None:
    assert propose(reply(REPLY, usage=False))[0].cost_usd is None
    assert propose(whole(REPLY), llm="local")[0].cost_usd is None


def test_the_one_model_of_a_local_server_needs_no_name_and_no_key(propose, monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    answer, requests = propose(reply(REPLY), llm="")
    headers, body = requests[0]
    assert answer.source and body["model"] == "only-one" and "authorization" not in {name.lower() for name in headers}
    with pytest.raises(ProviderError, match=r"offers 2 models \(a, b\)"):
        propose(reply(REPLY), llm="", models=("a", "b"))


def test_servers_that_do_not_stream_or_know_no_stream_options(propose) -> None:
    assert propose(whole(REPLY))[0].source == kernel("verified 20")
    answer, requests = propose(status(400, "unknown field stream_options"), reply(REPLY))
    assert answer.source and "stream_options" not in requests[1][1]


def test_every_answer_that_may_be_tried_again_is(propose) -> None:
    past = formatdate(time.time() - 5, usegmt=True)
    answer, requests = propose(
        status(429, retry_after_ms="1"), status(429, retry_after=past), status(503), status(500), reply(REPLY)
    )
    assert answer.source and len(requests) == 5
    with pytest.raises(ProviderError, match="status 500"):
        propose(status(500))
    assert len(propose.requests) == 1 + openai.RETRIES


def test_the_servers_own_delay_is_kept(propose) -> None:
    begun = time.monotonic()
    assert propose(status(429, retry_after="1"), reply(REPLY))[0].source
    assert time.monotonic() - begun >= 1.0
    with pytest.raises(ProviderError, match="status 429"):
        propose(status(429, retry_after="3600"), reply(REPLY))
    assert len(propose.requests) == 1, "nobody waits an hour"


@pytest.mark.parametrize("bad", [cut(REPLY), garbage, failing_within], ids=["cut", "garbage", "error within"])
def test_a_stream_that_breaks_is_begun_anew(propose, bad) -> None:
    answer, requests = propose(bad, reply(REPLY))
    assert answer.source == kernel("verified 20") and len(requests) == 2
    with pytest.raises(ProviderError, match="the service failed"):
        propose(bad)
    assert len(propose.requests) == 3


@pytest.mark.parametrize(("code", "words"), [(401, "OPENAI_API_KEY"), (404, "choose another"), (400, "told to")])
def test_what_no_retry_mends_fails_at_once(propose, code: int, words: str) -> None:
    with pytest.raises(ProviderError) as caught:
        propose(status(code))
    assert words in str(caught.value) and f"status {code}" in str(caught.value) and len(propose.requests) == 1


def test_the_key_is_in_no_error(propose) -> None:
    with pytest.raises(ProviderError) as caught:
        propose(status(401, f"the key {KEY} is wrong"))
    assert KEY not in str(caught.value) and caught.value.__cause__ is None and "***" in str(caught.value)


def test_a_slow_drip_ends_at_the_deadline_and_at_a_cancel(propose) -> None:
    with pytest.raises(ProviderError, match="no complete reply within 0.5 s"):
        propose(drip, deadline_s=0.5)
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    with pytest.raises(Cancelled):
        propose(drip, cancel=cancel)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reply("", refusal="I will not."), "refused to answer: I will not."),
        (reply("", "content_filter"), "refused"),
        (reply(""), "empty"),
        (reply(REPLY[:-8], "length"), "token limit"),
        (reply("x" * (2 << 20)), "no kernel file"),
    ],
    ids=["refusal", "filtered", "empty", "truncated", "2 MiB"],
)
def test_complete_messages_that_are_no_kernel(propose, answer, words: str) -> None:
    got, _ = propose(answer)
    assert got.source is None and words in got.problem and got.cost_usd > 0, "it is paid for all the same"


def test_nobody_there(tmp_path: Path) -> None:
    with serve(reply(REPLY)) as server:
        port = server.server_port
    provider = open_provider(f"openai:http://127.0.0.1:{port}/v1", paths=ProjectPaths(tmp_path), device=H200, llm="m")
    with pytest.raises(ProviderError, match="the service failed"):
        provider.propose(make_ask(), threading.Event())


def test_what_is_no_url_and_what_needs_a_key(monkeypatch, tmp_path: Path) -> None:
    for name in ("openai:localhost:8000", "openai:file:///etc", "openai:http://user:secret@host/v1"):
        with pytest.raises(ProjectError, match="no base URL") as caught:
            open_provider(name, paths=ProjectPaths(tmp_path), device=H200)
        assert "secret" not in str(caught.value)
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(MissingEnvironment, match="no key for openai"):
        open_provider("openai", paths=ProjectPaths(tmp_path), device=H200)


def test_a_run_leaks_no_key(tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=2)
    with serve(reply(REPLY), status(401, f"bad {KEY}")) as server:
        result = run(
            paths,
            config,
            RunOptions(
                device="host",
                seeds=False,
                package=False,
                llm="claude-sonnet-5",
                provider=f"openai:http://127.0.0.1:{server.server_port}/v1",
            ),
            open_judge=ScriptedJudge().open,
        )
    assert result.status == "failed" and result.tokens == 2150 and result.cost_usd == pytest.approx(0.0011)
    for path in paths.root.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    assert KEY not in caplog.text
