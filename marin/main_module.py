"""The script that was started, under the name by which another process can import it.

Python calls it `__main__`, in every process another one. What it defines can be found elsewhere only under its own name: that
of `python -m NAME`, or of the file that was started where it lies in a package on the search path.
"""

import functools
import importlib.util
import os
import shlex
import sys
from pathlib import Path
from typing import Any

MAIN = "__main__"


def module_of(definition: Any) -> str:
    """The module to import a class or function from; `__main__` for one of a script that has no other name."""
    module = str(definition.__module__)
    return (_name_of_main() or MAIN) if module == MAIN else module


def is_importable_from_main(value: Any) -> bool:
    """Whether a class or function of the started script is found in it under its name, by any process that imports it."""
    if getattr(value, "__module__", None) != MAIN or _name_of_main() is None:
        return False
    found: Any = sys.modules[MAIN]
    for part in getattr(value, "__qualname__", "<locals>").split("."):
        found = getattr(found, part, None)
    return found is value


def command_of_main() -> str:
    """What starts this program, without its arguments, as it can be typed again: `python -m NAME`, or `python FILE`.

    A `marin` command that runs a user's file with the rest of its arguments has put itself in the program's place.
    """
    if sys.argv[0].startswith("marin "):
        return sys.argv[0]
    spec = getattr(sys.modules[MAIN], "__spec__", None)
    if spec is not None:
        return f"python -m {str(spec.name).removesuffix('.__main__')}"
    return f"python {shlex.quote(sys.argv[0])}"


def _name_of_main() -> str | None:
    main = sys.modules[MAIN]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return _name_of_file(os.path.realpath(file), tuple(sys.path)) if file else None


@functools.cache
def _name_of_file(file: str, search_path: tuple[str, ...]) -> str | None:
    for root in search_path[1:]:  # the first is the script's own folder, which others do not have
        path = Path(file)
        if path.suffix != ".py" or not path.is_relative_to(os.path.realpath(root)):
            continue
        name = ".".join(path.relative_to(os.path.realpath(root)).with_suffix("").parts)
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin and os.path.realpath(spec.origin) == file:
            return name
    return None
