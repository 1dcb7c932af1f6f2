"""Prompts, as plain versioned templates, and the parsing of replies."""

from __future__ import annotations

from forge_tui.engine.prompts.build import VERSION, Prompt, build_prompt
from forge_tui.engine.prompts.parse import ParsedReply, parse_reply

__all__ = ["VERSION", "ParsedReply", "Prompt", "build_prompt", "parse_reply"]
