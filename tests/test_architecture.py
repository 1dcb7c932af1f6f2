"""The rules of docs/architecture.md: which way imports point, what the command line loads, what a package needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "forge_tui"
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("torch", "textual", "rich", "transformers", "anthropic", "numpy")

ALLOWED = {
    "errors": set(),
    "specs": {"errors"},
    "store": {"store", "specs", "errors"},
    "cuda": {"cuda", "specs", "errors"},
    "engine": {"engine", "cuda", "store", "specs", "errors"},
    "progress": {"engine", "cuda", "store", "specs", "errors"},
    "streams": {"engine", "store", "errors"},
    "kernel_commands": {"streams", "engine", "cuda", "store", "specs", "errors"},
    "commands": {"kernel_commands", "streams", "app", "progress", "engine", "cuda", "store", "specs", "errors"},
    "cli": {"commands", "store", "errors"},
    "__main__": {"cli"},
    "screens": {"screens", "progress", "engine", "cuda", "store", "specs", "errors"},
    "app": {"screens", "engine", "cuda", "store", "specs", "errors"},
    "__init__": set(),
}
"""Part of `forge_tui` -> parts it may import. `forge_tui` itself holds only the version."""


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[int, str]]:
    """Line and dotted name of every import of a module, those inside functions and under TYPE_CHECKING included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.relative_to(ROOT).parent.parts
                above = ".".join(package[:len(package) - node.level + 1])
                base = f"{above}.{base}".rstrip(".")
            found += [(node.lineno, f"{base}.{alias.name}" if base == "forge_tui" else base) for alias in node.names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_one_way(path: Path) -> None:
    allowed = ALLOWED[part_of(path)]
    for line, name in imports(path):
        if name.startswith("forge_tui."):
            part = name.split(".")[1]
            if part != "__version__":
                assert part in allowed, f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_textual_only_in_the_app_and_its_screens() -> None:
    for path in MODULES:
        if part_of(path) not in ("app", "screens"):
            used = [line for line, name in imports(path) if name.split(".")[0] == "textual"]
            assert not used, f"{path.relative_to(ROOT)}:{used[0]} imports textual"


@pytest.mark.parametrize("name", ["errors.py", "specs.py"])
def test_shared_records_need_only_msgspec(name: str) -> None:
    for line, module in imports(PACKAGE / name):
        top = module.split(".")[0]
        assert top in sys.stdlib_module_names | {"msgspec", "forge_tui"}, f"{name}:{line} imports {module}"


def test_a_package_needs_torch_but_not_forge() -> None:
    """`runtime/` is copied into every exported package."""
    files = sorted((PACKAGE / "engine/package/runtime").glob("*.py"))
    assert len(files) > 3
    for path in files:
        for line, module in imports(path):
            assert (module.split(".")[0] in sys.stdlib_module_names | {"torch"}
                    or module.startswith("forge_tui.engine.package.runtime")), f"{path.name}:{line} imports {module}"
        assert "forge_tui" not in path.read_text(), f"{path.name} names forge_tui: only relative imports work in a package"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["new", "--help"], ["no-such-command"], ["--run"]])
def test_the_command_line_loads_nothing_heavy(arguments: list[str]) -> None:
    code = ("import sys\nfrom forge_tui.cli import main\n"
            f"try: main({arguments!r})\nexcept SystemExit: pass\n"
            f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.stderr.splitlines()[-1] == "[]"


def test_every_module_opens_with_a_sentence_and_stays_readable() -> None:
    for path in MODULES:
        text = path.read_text()
        if text.strip():
            assert ast.get_docstring(ast.parse(text)), f"{path.relative_to(ROOT)} has no docstring"
        assert len(text.splitlines()) <= 600, f"{path.relative_to(ROOT)} is over 600 lines: split it by responsibility"


def test_nothing_that_is_read_can_run_code() -> None:
    """No unpickling: not by pickle and its kin, and torch.load only with `weights_only=True`. Catching its errors is fine."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                called = f"{node.func.value.id}.{node.func.attr}"
                where = f"{path.relative_to(ROOT)}:{node.lineno} calls {called}"
                assert node.func.value.id not in ("pickle", "shelve", "marshal", "dill"), where
                safe = any(word.arg == "weights_only" and getattr(word.value, "value", None) is True for word in node.keywords)
                assert called != "torch.load" or safe, where
