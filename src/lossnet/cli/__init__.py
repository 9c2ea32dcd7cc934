"""The command line ``lossnet``."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence

from lossnet.cli.parsers import COMMANDS, Command, outline, parsers
from lossnet.suggest import did_you_mean

__all__ = ["exit_status", "main", "parsers"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status (0 fine, 2 bad input, 3 diverged, 130 interrupted)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in COMMANDS:
        parser = outline()
        if given and not given[0].startswith("-"):
            parser.error(f"{given[0]} is no command; {did_you_mean(given[0], COMMANDS)}")
        _, unknown = parser.parse_known_args(given)  # prints help or the version and exits
        what = f"{unknown[0]} is no command; " if unknown else ""
        parser.error(f"{what}give a command first: {', '.join(COMMANDS)}")
    command = COMMANDS[given[0]]
    options = command.parser(given[0]).parse_args(given[1:])  # before anything is imported that takes time
    return exit_status(lambda: _run_command(command, options))


def _run_command(command: Command, options: Namespace) -> None:
    try:
        with warnings.catch_warnings():  # a line of text for each, without the code that it comes from
            warnings.showwarning = lambda message, *where: print(f"lossnet: {message}", file=sys.stderr)
            command.run(options)
    except OSError as error:
        output = getattr(options, "output", None)
        if error.errno in _DISK_ERRORS and error.filename is None and output:
            error.filename = str(output)
        raise


def exit_status(command: Callable[[], None]) -> int:
    """Run a command; print an error that ends it as one line and return the exit status."""
    from lossnet.training import Interrupted, NonFiniteLoss

    try:
        command()
        sys.stdout.flush()
        return 0
    except Interrupted as stop:
        resume, lost = "continue with the same command and --resume", "nothing is saved without --output"
        return _fail(f"{stop}\n{lost if stop.checkpoint is None else resume}", 130)
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "stopped", 130)
    except NonFiniteLoss as error:
        return _fail(str(error), 3)
    except BrokenPipeError:  # such as '| head', which has seen enough
        _close_stdout()
        return 0
    except OverflowError as error:
        return _fail(f"a number is too large: {error}", 2)
    except OSError as error:
        return _fail(_explain(error), 2)
    except (ValueError, ImportError) as error:
        # Our own errors (bad data, recipe, checkpoint, model) are ValueErrors that say what to do.
        return _fail(str(error), 2)


#: errors of a disk, with what to do about each
_DISK_ERRORS = {
    errno.ENOSPC: "free some space or choose another --output",
    errno.EDQUOT: "free some space or choose another --output",
    errno.EFBIG: "choose another --output, on a file system that takes larger files",
    errno.EROFS: "choose another --output",
}


def _explain(error: OSError) -> str:
    """Return the message of an error; for one of a disk, with the file and with advice."""
    if error.errno not in _DISK_ERRORS:
        return str(error)
    if error.filename is None:  # what is left to write would fail again when Python ends
        _close_stdout()
    what = "the standard output" if error.filename is None else error.filename
    return f"cannot write {what}: {os.strerror(error.errno)}; {_DISK_ERRORS[error.errno]}"


def _close_stdout() -> None:
    """Discard what is still to be printed."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _fail(message: str, status: int) -> int:
    from lossnet.training.engines import launched_rank

    rank = launched_rank() or 0
    if not rank or status == 2:  # what stops all processes is said once, but one may lack a file
        print(f"lossnet{f' (process {rank})' * bool(rank)}: {message}", file=sys.stderr)
    return status
