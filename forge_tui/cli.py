"""The command line: arguments, signals, exit codes. Imports nothing heavy; each command's body is in `commands`."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from forge_tui import __version__
from forge_tui.errors import ForgeError, Interrupted, ProjectError

INTERNAL_ERROR = 70
NOT_YET = ("pack", "unpack")
"""Commands of the contract that this version does not have."""

USAGE = """forge-tui [PROJECT]                    the app
       forge-tui --run TARGET [options]       without the app; TARGET is a project folder or a model source
       forge-tui COMMAND ...                  one of the commands below"""

COMMANDS = """commands (`forge-tui COMMAND --help` says more):
  new DIR --model SOURCE    make a project folder
  capture DIR               run the model once and record the operators it calls
  show DIR [OPERATOR [NODE]]  operators, one operator's candidates, or one candidate
  eval DIR OPERATOR FILE.cu   one kernel file through the whole judgement
  check FILE.cu             one kernel file, no project and no GPU: faults and counts
  export DIR                write the guarded package of the kernels that won
  bench DIR                 the whole model: eager, torch.compile, forged; kernels that lose in it go
  selftest                  wrong, cheating and honest kernels through the judge, on this machine
  doctor                    what this machine has and lacks
  stop DIR                  ask the run that holds a project to save and end
  pack DIR FILE.forge       a project as one file (not in this version)
  unpack FILE.forge DIR     and back (not in this version)

model sources: hf:ORG/NAME, a transformers folder, FILE.py (build_model and sample_inputs, or KernelBench's form),
package.module:callable. A project folder is made beside a source, named after it, and continued the next time.

exit codes: 0 done; 1 selftest: a kernel did not get its verdict; 2 usage or project error; 3 environment (no device,
no compiler, no space); 4 provider failed; 5 a limit was reached, run again to go on; 6 another run holds the project;
7 --require-speedup not met; 70 internal error; 75 waiting for replies in exchange/; 129, 130, 143 after SIGHUP, SIGINT,
SIGTERM and a clean save.
stdout is data, stderr is progress."""


def entry() -> NoReturn:
    """The console script."""
    code = main(sys.argv[1:])
    if sys.stderr is not None:
        sys.stderr.flush()
    _close_stdout()
    sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Prints every error; raises only argparse's SystemExit."""
    _catch_signals()
    try:
        return _command(arguments)()
    except ForgeError as error:
        if Interrupted.received is not None:
            return _stopped()
        _say(f"forge-tui: {error}")
        return error.exit_code
    except KeyboardInterrupt:  # Interrupted included
        return _stopped()
    except Exception as error:  # the last resort: a traceback is for a log file, a user gets one line
        if Interrupted.received is not None:
            return _stopped()
        _say(f"forge-tui: internal error: {type(error).__name__}: {_one_line(error)} (traceback: {_crash_log()})")
        return INTERNAL_ERROR


def _stopped() -> int:
    """Also where a library turned the interruption into an error of its own."""
    number = signal.Signals(Interrupted.received or signal.SIGINT)
    _say(f"forge-tui: stopped by {number.name}")
    return 128 + number


def _command(arguments: Sequence[str]) -> Callable[[], int]:
    """What the arguments ask for, ready to run. Raises SystemExit for --help, --version and wrong usage."""
    name = arguments[0] if arguments else ""
    if name in NOT_YET and not {"-h", "--help"} & set(arguments):
        return lambda: _not_yet(name)
    if name in PARSERS:
        options = PARSERS[name]().parse_args(arguments[1:])
    else:
        options = parse_main(arguments)
        name = "app" if options.run is None else "run"

    def run() -> int:
        from forge_tui import commands

        return commands.BODIES[name](options)

    return run


def _not_yet(name: str) -> int:
    raise ProjectError(f"`{name}` is not in this version ({__version__})", cure="`forge-tui --help` lists what is")


def parse_main(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of the app and of `--run`; refuses run options without `--run`."""
    parser = _main_parser()
    options = parser.parse_args(arguments)
    if options.run is None:
        given = [name for name, value in vars(options).items() if name != "project" and value != parser.get_default(name)]
        if given:
            parser.error(f"--{given[0].replace('_', '-')} needs --run TARGET")
        _refuse_mistyped_command(parser, options.project)
    elif options.project is not None:
        parser.error(f"--run takes one TARGET; what is {options.project}?")
    elif options.detach and (options.json or options.events):
        parser.error("--detach leaves nothing on stdout: read the result with `forge-tui show DIR --json`")
    elif options.json and options.events:
        parser.error("--json and --events are two uses of stdout: choose one")
    return options


def _refuse_mistyped_command(parser: argparse.ArgumentParser, project: str | None) -> None:
    """`forge-tui doctr` reads as a project folder; only where there is none can it be a slip."""
    if project is None or os.path.exists(project):
        return
    import difflib

    close = difflib.get_close_matches(project, PARSERS, n=1)
    if close:
        parser.error(f"no folder {project} and no such command: did you mean `{close[0]}`?")


def _main_parser() -> argparse.ArgumentParser:
    parser = _parser("", usage=USAGE, epilog=COMMANDS,
                     description="Make an unmodified PyTorch model faster with CUDA kernels proved right and timed honestly.")
    parser.add_argument("project", nargs="?", metavar="PROJECT", help="open the app on this project folder")
    parser.add_argument("--version", action="version", version=f"forge-tui {__version__}")
    run = parser.add_argument_group("without the app")
    run.add_argument("--run", metavar="TARGET", help="capture, search, judge and package whatever is not yet done")
    run.add_argument("--ops", action="append", default=[], metavar="PATTERN",
                     help="only these operators: `softmax`, `*norm*`, a variant key (repeatable)")
    run.add_argument("--iterations", type=_count, metavar="N", help="candidates per operator, over all runs")
    run.add_argument("--budget-usd", type=_amount, metavar="X", help="stop before the provider has cost more; 0: no limit")
    run.add_argument("--time-limit", type=duration, metavar="T", help="stop after 90, 90s, 10m or 2h; 0: no limit")
    run.add_argument("--provider", metavar="P", help="who writes kernels: builtin, anthropic, openai[:URL], exchange, "
                     "'command:PROGRAM ARGUMENTS', replay:PROJECT")
    run.add_argument("--llm", metavar="NAME", help="the provider's language model, or several: A,B")
    run.add_argument("--roles", choices=("one", "two"), help="two: an analyst plans each kernel, a writer writes it")
    run.add_argument("--policy", metavar="P", help="search policy: uct, band, greedy, beam, linear, round-robin, evolve")
    run.add_argument("--device", type=_device, metavar="D", help="auto, cuda:N or host")
    run.add_argument("--seed", type=_seed, metavar="N", help="of the search and of fresh inputs")
    run.add_argument("--jobs", type=_count, metavar="N", help="proposals in flight at once")
    run.add_argument("--fresh", action="store_true", help="begin anew; the old journal is kept beside the new one")
    run.add_argument("--no-builtin", action="store_true", help="do not try the kernels that ship with Forge first")
    run.add_argument("--wait", action="store_true", help="with --provider exchange: wait for replies instead of ending")
    run.add_argument("--detach", action="store_true", help="leave the run in a session of its own and return")
    run.add_argument("--json", action="store_true", help="print one JSON document at the end")
    run.add_argument("--events", action="store_true", help="print each event as a line of JSON")
    run.add_argument("--require-speedup", type=_amount, metavar="X", help="exit 7 unless every operator worked on is this much faster")
    return parser


def _new_parser() -> argparse.ArgumentParser:
    parser = _parser("new", "Make a project folder. Nothing is run or downloaded yet.")
    parser.add_argument("dir", metavar="DIR")
    parser.add_argument("--model", required=True, metavar="SOURCE",
                        help="hf:ORG/NAME, a transformers folder, FILE.py, or package.module:callable")
    parser.add_argument("--inputs", default="", metavar="SPEC",
                        help="text:FILE, text:=words, image:FILE, audio:FILE, FILE.safetensors, FILE.npz, FILE.py:function")
    parser.add_argument("--device", type=_device, default="auto", metavar="D", help="auto, cuda:N or host")
    parser.add_argument("--dtype", default="", choices=("float32", "float16", "bfloat16", "float64"), metavar="T",
                        help="float32, float16, bfloat16 or float64; default: as the source has it")
    parser.add_argument("--random-weights", action="store_true", help="random weights instead of the source's own")
    return parser


def _capture_parser() -> argparse.ArgumentParser:
    parser = _parser("capture", "Run the model once on its example inputs and record the operators it calls.")
    parser.add_argument("dir", metavar="DIR")
    return parser


def _show_parser() -> argparse.ArgumentParser:
    parser = _parser("show", "Show a project's operators, one operator's candidates, or one candidate.")
    parser.add_argument("dir", metavar="DIR")
    parser.add_argument("operator", nargs="?", metavar="OPERATOR", help="a variant key or its beginning, or a name: softmax")
    parser.add_argument("node", nargs="?", metavar="NODE", help="a candidate's number, or `best`")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _eval_parser() -> argparse.ArgumentParser:
    parser = _parser("eval", "Put one kernel file through the whole judgement. Exit code 0: verified; 2: not; "
                             "3: this machine cannot tell.")
    parser.add_argument("dir", metavar="DIR")
    parser.add_argument("operator", metavar="OPERATOR", help="a variant key or its beginning, or a name: softmax")
    parser.add_argument("file", metavar="FILE.cu")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parser.add_argument("--seed", type=_seed, metavar="N", help="of the fresh inputs, to repeat a verdict")
    parser.add_argument("--profile", action="store_true", help="say how it uses the device: by ncu where that is allowed")
    parser.add_argument("--sanitize", action="store_true", help="run it under compute-sanitizer's four tools too (minutes)")
    return parser


def _check_parser() -> argparse.ArgumentParser:
    parser = _parser("check", "Run one kernel file on the interpreter, no project and no GPU needed: faults with file, line, block and thread, "
                     "in several orders of warps; results beside torch's; counts. Exit code 0: clean; 2: not; 3: it cannot be interpreted.",
                     epilog="example:\n  forge-tui check softmax.cu --inputs 'input=float32(64, 1024), dim=-1' --set BLOCK=256\n\n"
                     "BLOCK is a name of that file's own [tune]: what a file can be set to, its [tune] says.\n"
                     "tensors are dtype(sizes), with options low=, high=, seed=, fill=, transposed=True, offset=1: int64(128, high=500).\n"
                     "out=float32(64) gives the results of an operator that torch does not know.")
    parser.add_argument("file", metavar="FILE.cu")
    parser.add_argument("--inputs", default="", metavar="SPEC", help="arguments by the operator's names; default: an example call that "
                        "the file's guards admit")
    parser.add_argument("--set", action="append", default=[], type=_tunable, metavar="NAME=VALUE", help="a tunable of the file (repeatable); "
                        "default: its first legal setting")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _tunable(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"([A-Za-z_]\w*)=(-?\d{1,18})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no setting; write NAME=VALUE, with a name of the file's [tune]")
    return found[1], int(found[2])


def _export_parser() -> argparse.ArgumentParser:
    parser = _parser("export", "Write the guarded package of the kernels that won.")
    parser.add_argument("dir", metavar="DIR")
    parser.add_argument("-o", "--output", metavar="OUT",
                        help="folder to write into; default: below DIR/packages. An earlier export of DIR is replaced, nothing else")
    parser.add_argument("--wheel", action="store_true", help="also build a wheel")
    parser.add_argument("--arch", action="append", default=[], metavar="sm_NN",
                        help="build for this architecture too, unjudged there (repeatable); nvcc builds where it is, else NVRTC")
    parser.add_argument("--select", default="safe", metavar="WHAT",
                        help="safe: confirmed wins over the better of eager and torch.compile, by a margin (the default); eager: over "
                             "eager alone, for models that run without torch.compile; all: every verified kernel; "
                             "or variant keys and operator patterns, with commas between")
    return parser


def _bench_parser() -> argparse.ArgumentParser:
    parser = _parser("bench", "Compare and time the whole model: eager, torch.compile, forged, both. Kernels that make its outputs wrong or "
                              "slow it down are dropped from the package. Exit code 0: accepted; 2: not.")
    parser.add_argument("dir", metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--package", metavar="FOLDER", help="folder written by export; default: the project's own package")
    parser.add_argument("--rounds", type=_count, default=30, metavar="N", help="interleaved rounds of timing (default 30)")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, whose first forward of a large model takes minutes")
    parser.add_argument("--no-autotune", action="store_true", help="leave out torch.compile's max-autotune, whose search takes minutes, of "
                                                                   "convolutions many")
    parser.add_argument("--seed", type=_seed, metavar="N", help="of the held-out inputs")
    return parser


def _doctor_parser() -> argparse.ArgumentParser:
    parser = _parser("doctor", "Say what this machine has and lacks, with the fix. Exit code 3: something needed is missing.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--provider", metavar="P", help="instead: whether this provider answers and takes the key, at no cost")
    parser.add_argument("--llm", default="", metavar="NAME", help="with --provider: the language model that has to be there")
    parser.add_argument("--measure", action="store_true", help="measure what each GPU can do at the most, where that is not stored")
    return parser


def _selftest_parser() -> argparse.ArgumentParser:
    parser = _parser("selftest", "Put the wrong, cheating and honest kernels that ship with Forge through the judge on this machine. "
                                 "Exit code 1: one of them did not get the verdict it must get.")
    parser.add_argument("--device", type=_device, default="auto", metavar="D", help="auto, cuda:N or host")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the kernels whose name contains TEXT")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _stop_parser() -> argparse.ArgumentParser:
    parser = _parser("stop", "Ask the run that holds a project to save and end.")
    parser.add_argument("dir", metavar="DIR")
    return parser


def _absent_parser(name: str) -> Callable[[], argparse.ArgumentParser]:
    return lambda: _parser(name, f"`{name}` is not in this version ({__version__}).")


PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "new": _new_parser, "capture": _capture_parser, "show": _show_parser, "eval": _eval_parser, "check": _check_parser, "export": _export_parser, "bench": _bench_parser,
    "doctor": _doctor_parser, "selftest": _selftest_parser, "stop": _stop_parser, **{name: _absent_parser(name) for name in NOT_YET},
}


def _parser(command: str, description: str, **more: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"forge-tui {command}".strip(), description=description, allow_abbrev=False,
                                   formatter_class=argparse.RawDescriptionHelpFormatter, **more)


def duration(text: str) -> float:
    """Seconds from `90`, `90s`, `10m`, `2h`, `1.5h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 90, 90s, 10m or 2h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,15}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def _seed(text: str) -> int:
    if not re.fullmatch(r"\d+", text) or len(text) > 19 or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: a whole number from 0 to 2**63 - 1")
    return int(text)


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 up")
    return value


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|host|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no device; write auto, cuda:N or host")
    return text


def _catch_signals() -> None:
    """A signal ends the command by an exception through its code, which saves. What was ignored when we started (nohup)
    stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    Interrupted.received = number
    raise Interrupted(number)


def _say(text: str) -> None:
    """To stderr, if there still is one."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # the terminal is gone (SIGHUP); the exit code still tells
        pass


def _close_stdout() -> None:
    """Flushes stdout here, so that a reader that has gone (`| head`) is no traceback at exit."""
    if sys.stdout is None:  # closed by who started us
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(error: Exception) -> str:
    try:
        return " ".join(str(error).split())[:200]
    except Exception:  # an exception's own __str__ may raise; the log has the traceback
        return "no message"


def _crash_log() -> str:
    """Writes the traceback of the current exception into the user's state folder and returns the file's path."""
    import tempfile
    import time
    import traceback
    from pathlib import Path

    from forge_tui.store.paths import UserPaths

    text = f"forge-tui {__version__}, Python {sys.version}\n{sys.argv}\n\n{traceback.format_exc()}"
    name = time.strftime(f"crash-%Y%m%d-%H%M%S-{os.getpid()}.log")
    for folder in (UserPaths.find().logs, Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
            return str(folder / name)
        except OSError:  # read-only home or full disk: try the next place
            continue
    return f"nowhere to write it: {traceback.format_exc().splitlines()[-2].strip()}"
