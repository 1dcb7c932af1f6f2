"""The local HTTP server of `messages_server`, speaking OpenAI's chat completions: streamed replies, and every way they
go wrong."""

from __future__ import annotations

import json
from typing import Any

from messages_server import Answer, Handler


def data(handler: Handler, document: Any) -> None:
    handler.wfile.write(f"data: {document if isinstance(document, str) else json.dumps(document)}\n\n".encode())
    handler.wfile.flush()


def chunk(handler: Handler, finish: str | None = None, **delta: Any) -> None:
    data(
        handler,
        {
            "id": "c1",
            "object": "chat.completion.chunk",
            "model": "claude-sonnet-5",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        },
    )


def begin(handler: Handler) -> None:
    handler.start_stream()
    chunk(handler, role="assistant", content="")
    handler.wfile.write(b": ping\n\n")


def reply(text: str, finish: str = "stop", usage: bool = True, refusal: str = "", size: int = 4096) -> Answer:
    def answer(handler: Handler) -> None:
        begin(handler)
        for start in range(0, len(text), size):
            chunk(handler, content=text[start : start + size])
        if refusal:
            chunk(handler, refusal=refusal)
        chunk(handler, finish)
        if usage:
            data(
                handler,
                {
                    "id": "c1",
                    "model": "claude-sonnet-5",
                    "choices": [],
                    "usage": {
                        "prompt_tokens": 2100,
                        "completion_tokens": 50,
                        "prompt_tokens_details": {"cached_tokens": 2000},
                    },
                },
            )
        data(handler, "[DONE]")

    return answer


def whole(text: str) -> Answer:
    """A server that does not stream."""

    def answer(handler: Handler) -> None:
        body = json.dumps(
            {
                "model": "m",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            }
        ).encode()
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def status(code: int, message: str = "told to", **headers: str) -> Answer:
    def answer(handler: Handler) -> None:
        body = json.dumps({"error": {"type": "some_error", "message": message}}).encode()
        handler.send_response(code)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def cut(text: str) -> Answer:
    """The connection ends in the middle of the reply."""

    def answer(handler: Handler) -> None:
        begin(handler)
        chunk(handler, content=text[: len(text) // 2])

    return answer


def garbage(handler: Handler) -> None:
    begin(handler)
    data(handler, '{"choices": [{"del')


def failing_within(handler: Handler) -> None:
    begin(handler)
    data(handler, {"error": {"message": "the engine is overloaded"}})


def drip(handler: Handler) -> None:
    """Something comes now and then, and no end."""
    begin(handler)
    while not handler.server.released.wait(0.05):
        chunk(handler, content=" ")
