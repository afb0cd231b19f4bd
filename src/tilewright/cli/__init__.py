"""The ``tilewright`` command: thin, over ``lab``. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main", "run"]

#: exit statuses: all is well; a check failed; a bad call; interrupted
OK, FAILED, BAD, INTERRUPTED = 0, 1, 2, 130


def main() -> None:
    """Entry point: run the command of ``sys.argv`` and exit with its status."""
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = _reader_is_gone()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command with these arguments; its exit status: 0, 1 (a check failed), 2 (a bad call), 130 (interrupted).

    Every error is one line on stderr. ``TILEWRIGHT_TRACEBACK=1`` shows the traceback of an unexpected one.
    """
    try:
        from tilewright.cli.app import command
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        return _complain("tilewright: the command needs typer and rich: pip install 'tilewright[cli]'", BAD)
    try:
        given = _bare_json(arguments)
        # obj: a command that has to start again in another process does so with the same arguments
        result = command().main(args=given, prog_name="tilewright", standalone_mode=False, obj=given)
        return result if isinstance(result, int) else OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_is_gone()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else FAILED
    except Exception as error:
        return _report(error)


def _report(error: Exception) -> int:
    """One line for an exception, and the exit status that it means."""
    text = str(error)
    if hasattr(error, "format_message"):  # a usage error; typer's own class of them has moved between versions
        lines = error.format_message().split()
        return _complain(f"tilewright: {' '.join(lines)}", BAD)
    if type(error).__name__ == "Abort":
        return INTERRUPTED
    if isinstance(error, (ValueError, TypeError, RuntimeError)) and text.startswith(("tilewright.", "tilewright:")):
        return _complain(text, BAD)
    if os.environ.get("TILEWRIGHT_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
        return FAILED
    first = next((line for line in text.splitlines() if line.strip()), "")
    return _complain(f"tilewright: {type(error).__name__}: {first} (TILEWRIGHT_TRACEBACK=1 shows where)", FAILED)


def _complain(text: str, code: int) -> int:
    try:
        sys.stderr.write(" ".join(text.split()) + "\n")
    except BrokenPipeError:
        return _reader_is_gone()
    return code


def _reader_is_gone() -> int:
    """Whoever read our output has stopped: nothing to say, and nobody to say it to."""
    # what is still buffered would raise again when the interpreter flushes it at exit
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return OK


def _bare_json(arguments: Sequence[str]) -> list[str]:
    """``bench`` writes JSON to a file (``--json FILE``); without a file, as everywhere else, it goes to stdout."""
    given = list(arguments)
    if given[:1] != ["bench"]:
        return given
    out: list[str] = []
    for i, word in enumerate(given):
        out.append(word)
        follows = given[i + 1] if i + 1 < len(given) else None
        if word == "--json" and (follows is None or (follows.startswith("-") and follows != "-")):
            out.append("-")
    return out
