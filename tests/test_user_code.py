"""Whatever a user's model file does, the command line says what happened in the user's own lines, or goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import environment, forge
from safetensors.torch import save_file

from forge_tui.engine.cards import load_operators
from forge_tui.engine.forward import open_model
from forge_tui.engine.package.compare import tensors_of
from forge_tui.engine.samples import load_sample
from forge_tui.engine.sources.failures import MOST_CHARACTERS
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import load_project

HEAD = "import os, signal, sys\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"


def model(forward: str = "return F.relu(x)", *, init: str = "pass", top: str = "", inputs: str = "torch.ones(4, 5)",
          build: str = "M()") -> str:
    return (f"{HEAD}{top}\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n"
            f"    def forward(self, x):\n        {forward}\n\ndef build_model(): return {build}\n"
            f"def sample_inputs(): return ({inputs},)\n")


def capture(folder: Path, text: str, *, command: str = "capture", more: str = "", **variables: str):
    root = folder / "p"
    root.mkdir(exist_ok=True)
    (root / "model.py").write_text(text)
    (root / "project.toml").write_text(f'format = 1\n[model]\nsource = "model.py"\n{more}\n[device]\ntarget = "host"\n')
    result = forge(command, "p", cwd=folder, **variables)
    assert "internal error" not in result.stderr and "Warning" not in result.stderr, result.stderr
    return result


REFUSED = {
    "str_raises": (model("raise X()", top="class X(Exception):\n    def __str__(self): raise ValueError\n"),
                   ("forward of M raised", "X: its message cannot be shown: __str__ raised ValueError")),
    "str_exits": (model("raise X()", top="class X(Exception):\n    def __str__(self): sys.exit(0)\n"), ("__str__ raised SystemExit",)),
    "odd_constructor": (model("raise X(1, 2)", top="class X(Exception):\n    def __init__(self, a, b): pass\n"), ("X: (1, 2)",)),
    "endless_message": (model("raise ValueError('x' * 10**7)"), ("xxx ...",)),
    "base_exception": (model("raise X()", top="class X(BaseException): pass\n"), ("forward of M raised", "X: no message")),
    "keyboard_interrupt": (model(top="raise KeyboardInterrupt\n"), ("model.py cannot be imported: KeyboardInterrupt",)),
    "exit_at_import": (model(top="sys.exit(5)\n"), ("model.py cannot be imported: SystemExit: 5", "model.py:5")),
    "exit_in_build": (model(build="exit(0)"), ("build_model() raised: SystemExit",)),
    "exit_in_inputs": (model(inputs="exit(0)"), ("sample_inputs() raised: SystemExit",)),
    "exit_in_forward": (model("sys.exit(0)"), ("forward of M raised", "SystemExit: 0")),
    "hard_exit_at_import": (model(top="os._exit(0)\n"), ("os._exit(0) was called", "model.py:5")),
    "hard_exit_in_forward": (model("os._exit(0)"), ("os._exit(0) was called",)),
    "endless_recursion": (model(top="sys.setrecursionlimit(50000)\ndef f(n): return f(n + 1)\nf(0)\n"), ("RecursionError", "model.py:6")),
    "eval_raises": (model(init="self.eval = lambda: 1 / 0"), ("M cannot be made ready: ZeroDivisionError",)),
    "meta_weights": (model("return self.l(x)", init="self.l = nn.Linear(5, 3, device='meta')"),
                     ("l.weight of M is on the meta device", "[model] weights")),
    "meta_buffer": (model(init="self.register_buffer('b', torch.ones(3, device='meta'))"), ("b of M is on the meta device",)),
    "meta_inputs": (model(inputs="torch.ones(4, 5, device='meta')"), ("argument 0 of the inputs is on the meta device",)),
}


DRIVER = """
import contextlib, io, json, sys
from forge_tui.cli import main
results = {}
for name in sys.argv[1:]:
    said, data = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(data):
        code = main(["capture", name])
    results[name] = code, said.getvalue(), data.getvalue()
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Exit code, stderr and stdout of every case, one after the other in one process: none may end it."""
    folder = tmp_path_factory.mktemp("cases")
    for name, text in {**{name: text for name, (text, _) in REFUSED.items()}, **GOES_ON, **DTYPES}.items():
        (folder / name).mkdir()
        (folder / name / "model.py").write_text(text)
        (folder / name / "project.toml").write_text('format = 1\n[model]\nsource = "model.py"\n[device]\ntarget = "host"\n')
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    result = subprocess.run([sys.executable, "-c", DRIVER, *(str(folder / name) for name in names)], cwd=folder, text=True,
                            env=environment(folder / "home"), capture_output=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return {Path(name).name: (code, said, data) for name, (code, said, data) in json.loads(result.stdout).items()} | {
        "folder": (0, str(folder), "")}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_users_code_does_is_said_in_its_own_lines(case: str, captured: dict[str, tuple[int, str, str]]) -> None:
    code, said, data = captured[case]
    assert code == 2 and data == "", said
    for word in (*REFUSED[case][1], "model.py", "fix: "):
        assert word in said, said
    assert "Traceback" not in said and len(said) < 2 * MOST_CHARACTERS


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_that_the_model_swallows_ends_the_command(number: str, code: int, tmp_path: Path) -> None:
    swallow = f"try: os.kill(os.getpid(), signal.{number}); signal.pause()\nexcept BaseException: pass\n"
    result = capture(tmp_path, model(top=swallow))
    assert result.returncode == code and f"stopped by {number}" in result.stderr


GOES_ON = {
    "closes_streams": model("sys.stdout = sys.stderr = None; return F.relu(x)", top="sys.stdout = None; sys.path.clear()\n"),
    "patches_torch": model("return F.relu(F.gelu(x))", top="F.gelu = lambda x: x * torch.sigmoid(1.7 * x)\n"
                           "torch.Tensor.__add__ = lambda a, b: torch.add(a, b)\ntorch.no_grad = torch.enable_grad\n"),
    "settings": model("torch.set_grad_enabled(True); torch.set_default_dtype(torch.float64); torch.manual_seed(7); return F.relu(x)"),
    "forks": model(top="pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)\n"),
    "adds_zero": model("return F.relu(x + 0), torch.add(x, 0.0), torch.sub(x, 1, alpha=2)", inputs="torch.ones(4, 5).long()"),
}


DTYPES = {dtype: model("return F.relu(x.to(torch.float32) + self.w.to(torch.float32))", inputs=f"torch.ones(4, 5).to(torch.{dtype})",
                       init=f"self.register_buffer('w', torch.ones(5).to(torch.{dtype}))")
          for dtype in ("float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e8m0fnu", "uint16", "uint64", "complex32", "complex64")}


@pytest.mark.parametrize("case", GOES_ON)
def test_capture_goes_on(case: str, captured: dict[str, tuple[int, str, str]]) -> None:
    code, said, data = captured[case]
    assert code == 0 and "torch.nn.functional.relu" in data, said
    assert "Warning" not in said, said


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_any_dtype_are_captured_or_listed_with_the_reason(dtype: str, captured: dict[str, tuple[int, str, str]]) -> None:
    assert captured[dtype][0] == 0, captured[dtype][1]
    cards = load_operators(ProjectPaths(Path(captured["folder"][1]) / dtype))
    cast = [item for item in cards.variants if item.call.arguments["input"].dtype == dtype]
    if dtype in ("float8_e4m3fnuz", "float8_e8m0fnu", "complex32"):
        assert not cast and any(dtype in item.reason for item in cards.skipped)
    else:
        assert len(cast) == 2 and all(item.statistics["input"].maximum == 1.0 for item in cast)


PRINTS = model("print('B' * 10**6); os.write(1, b'C'); return F.relu(x)",
               top="print('A' * 10**6)\nos.chdir('/')\nimport atexit; atexit.register(lambda: print('D'))\n")


def test_what_a_model_prints_is_not_data(tmp_path: Path) -> None:
    assert capture(tmp_path, PRINTS).stdout.startswith("model.py: M, 0 parameters\n")
    result = forge("--run", "p", "--iterations", "1", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["status"] == "done", result.stderr


def test_a_crash_in_native_code_leaves_the_models_lines(tmp_path: Path) -> None:
    result = capture(tmp_path, model("import ctypes; ctypes.string_at(0)"))
    assert result.returncode < 0 and 'model.py", line 11 in forward' in result.stderr


def test_lazy_modules_get_their_shapes_from_the_first_input(tmp_path: Path) -> None:
    lazy = model("return F.relu(self.b(self.l(x)))", init="self.l, self.b, self.unused = nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.LazyLinear(2)")
    assert capture(tmp_path, lazy).returncode == 0
    paths = ProjectPaths(tmp_path / "p")
    linear = next(item for item in load_operators(paths).variants if item.operator.endswith("linear"))
    again, _ = open_model(load_project(paths.root), paths.root)
    assert linear.call.arguments["weight"].shape == (3, 5)
    assert torch.equal(again.model.l.weight, load_sample(paths, linear, 0)["weight"]), "every load must draw the same values"
    assert any("unused" in note for note in again.notes)


@pytest.mark.parametrize("init", ["self.l = nn.LazyLinear(3)", "self.l = nn.Linear(5, 3, device='meta')"])
def test_weights_from_a_file_give_lazy_and_meta_parameters_their_values(init: str, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    save_file({"l.weight": torch.full((3, 5), 2.0), "l.bias": torch.zeros(3)}, tmp_path / "p" / "w.safetensors")
    result = capture(tmp_path, model("return F.relu(self.l(x))", init=init), more='weights = "w.safetensors"')
    assert result.returncode == 0, result.stderr
    cards = load_operators(ProjectPaths(tmp_path / "p"))
    linear = next(item for item in cards.variants if item.operator.endswith("linear"))
    assert linear.statistics["weight"].mean == 2.0


def test_outputs_that_hold_themselves_or_go_deep_are_walked() -> None:
    ring: list[object] = [torch.ones(1)]
    ring.append(ring)
    for _ in range(5000):
        ring = [ring, torch.ones(2)]
    assert len(list(tensors_of(ring))) == 5001
