"""Experiments, files and modules that end with `executor_main`, run up to there for their steps alone."""

import contextlib
import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

from marin.errors import ConfigError, MarinError, Terminated
from marin.execution import executor
from marin.execution.step import ExecutorStep


def with_steps_of(module: str, use: Callable[[Sequence[ExecutorStep]], None]) -> None:
    """Runs an experiment (a module's name or a .py file) up to its `executor_main`, whose steps go to `use` instead.

    `use` is called while the experiment still is `__main__`, where the code of its functions is found. What the
    experiment prints goes to stderr.

    Raises:
        ConfigError: there is no such module, or it never calls `executor_main`.
    """
    called = False

    def handler(steps: Sequence[ExecutorStep], description: str | None) -> None:
        nonlocal called
        called = True
        use(steps)

    token = executor.intercept.set(handler)
    try:
        with _as_started_by_python(module), contextlib.redirect_stdout(sys.stderr):
            if module.endswith(".py"):
                runpy.run_path(module, run_name="__main__")
            else:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Terminated:
        raise
    except SystemExit as ended:
        if not called and ended.code not in (None, 0):
            raise ConfigError(f"{module} ended with {ended.code!r} before it called executor_main") from None
    except Exception as error:
        if called or isinstance(error, MarinError):
            raise
        raise ConfigError(what_failed(module, error)) from error
    finally:
        executor.intercept.reset(token)
    if not called:
        raise ConfigError(
            f'{module} never calls executor_main: give an experiment that ends with `if __name__ == "__main__": '
            "executor_main(steps=[...])`"
        )


def what_failed(name: str, error: Exception) -> str:
    """One line on an error that a user's own .py file or module has raised while it was read."""
    if isinstance(error, SyntaxError):
        place, line, text = error.filename or name, error.lineno, error.msg  # without both, of a file that is no text
    else:
        frames = traceback.extract_tb(error.__traceback__)
        last = [frame for frame in frames if "importlib" not in frame.filename][-1]  # which looks for modules
        place, line, text = last.filename, last.lineno, str(error)
    start = name if name.endswith(".py") else f"-m {name}"
    where = place if line is None else f"{place}, line {line}"
    return f"{name} fails: {type(error).__name__} in {where}: {text}; `python {start}` shows how it came to that"


def is_experiment(name: str) -> bool:
    """Whether `name` is a .py file or the name of a module that Python finds from here."""
    if name.endswith(".py"):
        return os.path.isfile(name)
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    with _working_directory_first():
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return False
    return spec is not None and spec.origin is not None and spec.origin.endswith(".py")


@contextlib.contextmanager
def _as_started_by_python(module: str) -> Iterator[None]:
    arguments = sys.argv
    sys.argv = [module]  # the experiment's own flags are not ours
    try:
        with _working_directory_first(os.path.dirname(os.path.abspath(module)) if module.endswith(".py") else None):
            yield
    finally:
        sys.argv = arguments


@contextlib.contextmanager
def _working_directory_first(directory: str | None = None) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    if directory is not None:
        sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path[:] = before
