"""`doctor --provider`: whether a service answers and takes the key, without a token being paid."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from messages_server import Handler, MessagesServer, serve

from forge_tui.engine.providers.trial import try_provider
from forge_tui.errors import MissingEnvironment, ProjectError, ProviderError

KEY = "sk-test-0123456789-never-to-be-seen"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORGE_HOME", str(tmp_path / "home"))
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def at(server: MessagesServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_a_service_that_has_the_model_answers_without_a_request_for_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with serve() as server:
        server.models = ("claude-opus-5-5", "other")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", at(server))
        assert try_provider("anthropic") == "anthropic answers and takes the key: claude-opus-5-5"
        with pytest.raises(ProviderError, match="no model newest") as caught:
            try_provider("anthropic", "newest")
        assert "claude-opus-5-5, other" in str(caught.value)
        assert try_provider(f"openai:{at(server)}/v1") == "openai answers: claude-opus-5-5, other"
        assert server.requests == []


def test_a_refused_key_is_said_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def refuse(handler: Handler) -> None:
        body = f"wrong key {handler.headers['authorization']}".encode()
        handler.send_response(401)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    monkeypatch.setattr(Handler, "do_GET", refuse)
    with serve() as server, pytest.raises(ProviderError) as caught:
        try_provider(f"openai:{at(server)}/v1")
    assert "status 401" in str(caught.value) and "check the key" in str(caught.value)
    assert KEY not in str(caught.value)


def test_nothing_there_no_key_and_no_program_are_told_apart() -> None:
    with pytest.raises(ProviderError, match="no answer"):
        try_provider("openai:http://127.0.0.1:9/v1")
    with pytest.raises(MissingEnvironment, match="no key"):
        try_provider("anthropic")
    with pytest.raises(MissingEnvironment, match="no program nowhere"):
        try_provider("command:nowhere --at all")
    with pytest.raises(ProjectError, match="no provider"):
        try_provider("nobody")
    assert sys.executable in try_provider(f"command:{sys.executable} x.py")
    assert try_provider("builtin") == "builtin asks no service and needs no key"
