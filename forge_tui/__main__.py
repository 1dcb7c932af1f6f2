"""`python -m forge_tui`: the same as the `forge-tui` command."""

from forge_tui.cli import entry

entry()
