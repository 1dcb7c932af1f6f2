"""A local HTTP server that speaks the Messages API: streamed replies, and every way in which they go wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers the nth request with the nth answer; the last one serves the rest."""

    protocol_version = "HTTP/1.1"
    server: MessagesServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            number = len(self.server.requests)
            self.server.requests.append((dict(self.headers.items()), body))
        answers = self.server.answers
        try:
            answers[min(number, len(answers) - 1)](self)
        except (BrokenPipeError, ConnectionResetError):  # the client went away: what some tests are about
            self.close_connection = True

    def do_GET(self) -> None:
        """The list of models."""
        body = json.dumps({"data": [{"id": name} for name in self.server.models]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def start_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, kind: str, **fields: Any) -> None:
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


class MessagesServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answers: list[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.models: tuple[str, ...] = ()
        self.lock = threading.Lock()
        self.released = threading.Event()
        """Set at the end: what hangs on purpose may go."""


@contextmanager
def serve(*answers: Answer) -> Iterator[MessagesServer]:
    server = MessagesServer(list(answers))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def begin(handler: Handler, tokens_in: int = 100, cached: int = 2000) -> None:
    handler.start_stream()
    handler.event("message_start", message={
        "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "claude-opus-5-5",
        "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": tokens_in, "output_tokens": 1, "cache_creation_input_tokens": 0,
                  "cache_read_input_tokens": cached}})
    handler.event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    handler.event("ping")


def deltas(handler: Handler, text: str, size: int = 4096) -> None:
    for start in range(0, len(text), size):
        handler.event("content_block_delta", index=0, delta={"type": "text_delta", "text": text[start:start + size]})


def end(handler: Handler, stop_reason: str = "end_turn", tokens_out: int = 50) -> None:
    handler.event("content_block_stop", index=0)
    handler.event("message_delta", delta={"stop_reason": stop_reason, "stop_sequence": None},
                  usage={"output_tokens": tokens_out})
    handler.event("message_stop")


def reply(text: str, stop_reason: str = "end_turn") -> Answer:
    def answer(handler: Handler) -> None:
        begin(handler)
        deltas(handler, text)
        end(handler, stop_reason)
    return answer


def tool_reply(idea: str, kernel: str, stop_reason: str = "tool_use", keep: float = 1.0) -> Answer:
    """A reply through the tool, its JSON streamed in pieces; `keep` less than 1 cuts it."""
    def answer(handler: Handler) -> None:
        begin(handler)
        handler.event("content_block_stop", index=0)
        handler.event("content_block_start", index=1,
                      content_block={"type": "tool_use", "id": "t1", "name": "submit_kernel", "input": {}})
        document = json.dumps({"idea": idea, "kernel": kernel})
        document = document[:int(len(document) * keep)]
        for start in range(0, len(document), 40):
            handler.event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": document[start:start + 40]})
        handler.event("content_block_stop", index=1)
        handler.event("message_delta", delta={"stop_reason": stop_reason, "stop_sequence": None}, usage={"output_tokens": 50})
        handler.event("message_stop")
    return answer


def thinking_reply(reasoning: str, text: str) -> Answer:
    """A reply after thinking that is shown, in small pieces."""
    def answer(handler: Handler) -> None:
        begin(handler)
        handler.event("content_block_stop", index=0)
        handler.event("content_block_start", index=1, content_block={"type": "thinking", "thinking": "", "signature": ""})
        for start in range(0, len(reasoning), 10):
            handler.event("content_block_delta", index=1, delta={"type": "thinking_delta", "thinking": reasoning[start:start + 10]})
        handler.event("content_block_stop", index=1)
        handler.event("content_block_start", index=2, content_block={"type": "text", "text": ""})
        handler.event("content_block_delta", index=2, delta={"type": "text_delta", "text": text})
        handler.event("content_block_stop", index=2)
        handler.event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 50})
        handler.event("message_stop")
    return answer


def status(code: int, retry_after: str | None = None, message: str = "told to") -> Answer:
    def answer(handler: Handler) -> None:
        body = json.dumps({"type": "error", "error": {"type": "some_error", "message": message}}).encode()
        handler.send_response(code)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(body)))
        if retry_after is not None:
            handler.send_header("retry-after-ms", retry_after)
        handler.end_headers()
        handler.wfile.write(body)
    return answer


def cut(text: str) -> Answer:
    """The connection ends in the middle of the reply."""
    def answer(handler: Handler) -> None:
        begin(handler)
        deltas(handler, text[:len(text) // 2])
    return answer


def garbage(handler: Handler) -> None:
    begin(handler)
    handler.wfile.write(b"event: content_block_delta\ndata: {\"type\": \"content_block_de\n\n")


def overloaded_within(handler: Handler) -> None:
    begin(handler)
    handler.event("error", error={"type": "overloaded_error", "message": "Overloaded"})


def drip(handler: Handler) -> None:
    """Something comes now and then, and no end."""
    begin(handler)
    while not handler.server.released.wait(0.05):
        handler.event("ping")
