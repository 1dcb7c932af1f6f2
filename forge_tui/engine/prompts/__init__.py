"""Prompts, as plain versioned templates, and the parsing of replies."""

from __future__ import annotations

from forge_tui.engine.prompts.build import PROMPT_TOKENS, VERSION, Prompt, build_analysis, build_prompt
from forge_tui.engine.prompts.parse import ParsedReply, parse_reply

__all__ = ["PROMPT_TOKENS", "VERSION", "ParsedReply", "Prompt", "build_analysis", "build_prompt", "parse_reply"]
