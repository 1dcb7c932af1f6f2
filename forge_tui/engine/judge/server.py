"""The judging worker: `python -m forge_tui.engine.judge.server --project DIR`. Holds the device and the captured
tensors.

It speaks frames (see `forge_tui.cuda.worker`) and is expected to die: whatever a candidate does to it, the engine
goes on. It never sees a provider's key: the engine starts it with an environment that has none.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.worker import WorkerError, serve
from forge_tui.engine.judge.messages import (
    Hello,
    Judgement,
    JudgeRequest,
    ProgressReport,
    Refusal,
    Welcome,
    decode_request,
    encode,
)
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.errors import ForgeError


class Server:
    """Answers requests with one open target; loads a variant's samples when it is first judged."""

    def __init__(self, project: Path, memory: int = 0) -> None:
        """memory: most private memory on the host target, bytes; 0: no limit. (A GPU's driver maps what it likes.)"""
        self.project = project
        self.memory = memory
        self._target = None
        self._timer = None
        self._samples: dict[str, list] = {}
        self._imported = False
        """Whether the model's own file was run: only for regions, whose reference it may hold."""

    def handle(self, body: bytes, progress: Callable[[bytes], None]) -> bytes:
        """One request. Raises WorkerError with a Refusal for everything that is no verdict."""
        try:
            request = decode_request(body)
            if isinstance(request, Hello):
                return encode(self._hello(request))
            return encode(self._judge(request, lambda what, done, of: progress(encode(ProgressReport(what, done, of)))))
        except WorkerError:
            raise
        except ForgeError as error:
            raise WorkerError(encode(Refusal(type(error).__name__, error.message, error.where, error.cure))) from error
        except MemoryError as error:
            raise WorkerError(encode(Refusal("NoMemory", str(error) or "out of memory"))) from error
        except Exception as error:  # a defect of ours must not cost the run: the engine says so and goes on
            traceback.print_exc(file=sys.stderr)
            kind = "NoMemory" if _is_memory(error) else "Internal"
            raise WorkerError(encode(Refusal(kind, f"{type(error).__name__}: {error}"))) from error

    def _hello(self, request: Hello) -> Welcome:
        import torch

        from forge_tui.cuda.target import open_target
        from forge_tui.engine.judge.insight import has_sanitizer
        from forge_tui.engine.judge.timing import open_timer
        from forge_tui.store.paths import ProjectPaths

        self._target = open_target(request.device, ProjectPaths(self.project).build)
        if self._target.kind == "host":
            torch.set_num_threads(1)
            _limit_memory(self.memory)
        notes = self._comparison(request.fused) if self._target.kind == "cuda" else ()
        if request.probe:
            from forge_tui.engine.judge.probe import probe

            probe(self._target)
        self._timer = open_timer(self._target)
        return Welcome(self._target.kind, self._target.facts, str(torch.__version__), os.getpid(),
                       sanitizer=has_sanitizer(self._target), notes=notes)

    def _comparison(self, fused: bool) -> tuple[str, ...]:
        """Try the comparison kernels while builders start; what a person should know. Raises WorkerError where the context is gone."""
        from forge_tui.engine.judge import fusedcheck

        self._target.warm()
        if not fused:
            fusedcheck.forbid(self._target, "they ended a worker")
        why = fusedcheck.problem(self._target)
        if self._target.lost is not None:
            raise WorkerError(encode(Refusal("Comparison", why)))
        if not why:
            return ()
        note = f"results are compared by torch, which is slower: the judge's own comparison kernels fail their self-check ({why})"
        print(note, file=sys.stderr, flush=True)
        return (note,)

    def _judge(self, request: JudgeRequest, progress: Callable[[str, int, int], None]) -> Judgement:
        from forge_tui.engine.judge.judge import judge_text

        if self._target is None:
            raise ForgeError("the worker was asked to judge before it was greeted")
        variant = self._variant(request.variant)
        self._find_region(variant)
        if request.variant not in self._samples:
            progress("loading captured tensors", 0, 1)
            self._samples = {request.variant: self._load(variant)}
        try:
            verdict = judge_text(request.text, request.filename, variant, self._samples[request.variant], self._target,
                                 seed=request.seed, options=request.options, settings=request.settings,
                                 progress=progress, timer=self._timer)
        except Exception:  # torch's own calls fail too once a candidate has ended the context: that is its verdict
            lost = getattr(self._target, "lost", None)
            if lost is None:
                raise
            verdict = _ended(lost, request.seed)
        return Judgement(verdict, last=getattr(self._target, "lost", None) is not None)

    def _variant(self, key: str):
        from forge_tui.engine.cards import load_operators
        from forge_tui.errors import ProjectError
        from forge_tui.store.paths import ProjectPaths

        paths = ProjectPaths(self.project)
        operators = load_operators(paths)
        variant = operators.find(key) if operators else None
        if variant is None:
            raise ProjectError(f"no variant {key} was captured", where=str(paths.operators),
                               cure="capture the model again, or name one of `forge-tui show`")
        return variant

    def _find_region(self, variant) -> None:
        """Import what a region's reference is. Raises ProjectError where that is not what was captured."""
        from forge_tui.engine.operators.regions import imported, is_region
        from forge_tui.engine.package.runtime.callees import source_of
        from forge_tui.engine.sources import import_code
        from forge_tui.errors import ProjectError
        from forge_tui.store.project import load_project

        if not is_region(variant.operator):
            return
        if not self._imported:
            import_code(load_project(self.project).model, self.project)
            self._imported = True
        for path in variant.operator.split("+"):
            wanted = next((callee.source for form in variant.forms for callee in form.callees if callee.path == path), "")
            if wanted and source_of(imported(path)) != wanted:
                raise ProjectError(f"{path} is not what it was when the model was captured", where=str(self.project),
                                   cure=f"capture again: forge-tui capture {self.project}")

    def _load(self, variant) -> list:
        from forge_tui.engine.samples import load_sample
        from forge_tui.store.paths import ProjectPaths

        paths = ProjectPaths(self.project)
        samples = [load_sample(paths, variant, index) for index in range(len(variant.samples))]
        if self._target.kind == "cuda":
            from forge_tui.engine.judge.memory import to_device

            samples = [{name: to_device(tensor, "cuda") for name, tensor in sample.items()} for sample in samples]
        return samples


def _ended(fault: CandidateFault, seed: int | None) -> Verdict:
    from forge_tui.engine.judge.trial import from_fault

    failed = from_fault(fault, "while its settings were tried")
    return Verdict("fault", failed.sentence, (failed.check,), fault=failed.fault, line=failed.line, seed=seed or 0)


def _limit_memory(limit: int) -> None:
    """What asks for more gets an error, where the machine would else kill some process or other."""
    import resource

    if limit:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _is_memory(error: Exception) -> bool:
    """torch says it in a RuntimeError: `DefaultCPUAllocator: can't allocate memory`, `CUDA out of memory`."""
    text = str(error).lower()
    return "can't allocate memory" in text or "out of memory" in text or "not enough memory" in text


def main() -> None:
    parser = argparse.ArgumentParser(prog="forge-tui worker", description=__doc__)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--memory", type=int, default=0, metavar="BYTES", help="most private memory; 0: no limit")
    parser.add_argument("--compiler", action="store_true", help="import torch's compiler before it is asked for")
    arguments = parser.parse_args()
    import forge_tui.engine.judge.judge                     # noqa: F401  torch with it, before it says that it is ready

    if arguments.compiler:
        with contextlib.suppress(Exception):                # whoever asks for a baseline is told why there is none
            import torch._inductor.compile_fx  # noqa: F401

    serve(Server(arguments.project, arguments.memory).handle)


if __name__ == "__main__":
    main()
