"""Which file of user space a module or definition comes from: outside Marin, the standard library and installed packages."""

import ast
import functools
import importlib.util
import inspect
import os
import pathlib
import sys
import sysconfig
from typing import Any


def is_user_space(definition: Any) -> bool:
    """Whether a class or function is defined outside Marin, the standard library and installed packages."""
    return getattr(definition, "__module__", None) == "__main__" or is_user_file(source_file(definition))


def source_file(definition: Any) -> str | None:
    """The file that a class or function is defined in; None for built-in ones."""
    code = getattr(inspect.unwrap(definition), "__code__", None)
    if code is not None and os.path.isfile(code.co_filename):
        return os.path.realpath(code.co_filename)
    return module_file(getattr(definition, "__module__", None) or "")


def module_file(module: str) -> str | None:
    """The file of a module, found without importing anything."""
    if module == "__main__":  # not always the same: `marin explain` runs experiments
        file = getattr(sys.modules[module], "__file__", None)
        return os.path.realpath(file) if file else None
    return _find_module_file(module)


@functools.cache
def _find_module_file(module: str) -> str | None:
    loaded = sys.modules.get(module)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        return os.path.realpath(file) if file else None
    package, _, name = module.rpartition(".")
    if package:  # looked for by hand, as Python imports a package to find what is in it
        found = (file_at(pathlib.Path(path, name)) for path in _places_of_package(package))
        return next((file for file in found if file is not None), None)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return os.path.realpath(spec.origin) if spec and spec.has_location and spec.origin else None


def _places_of_package(package: str) -> list[str]:
    """The directories in which the modules of a user-space package lie; none for any other."""
    if not _is_user_package(package.split(".")[0]):
        return []
    if package in sys.modules:
        return list(getattr(sys.modules[package], "__path__", ()))
    parent, _, name = package.rpartition(".")
    if parent:
        return [place for path in _places_of_package(parent) if os.path.isdir(place := os.path.join(path, name))]
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec else []


def _is_user_package(name: str) -> bool:
    spec = importlib.util.find_spec(name) if name not in sys.modules else sys.modules[name].__spec__
    if spec is None:
        return False
    return all(is_user_file(os.path.join(path, "x")) for path in spec.submodule_search_locations or ())


@functools.cache
def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {os.path.realpath(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*roots, str(pathlib.Path(__file__).resolve().parents[1]))


@functools.cache
def is_user_file(file: str | None) -> bool:
    if file is None:
        return False
    parts = pathlib.PurePath(file)
    if {"site-packages", "dist-packages"} & set(parts.parts):
        return False
    return not any(parts.is_relative_to(root) for root in _library_roots())


def file_of_from(file: str, statement: ast.ImportFrom) -> str | None:
    """The file of the module that `from MODULE import ...` names."""
    return file_at(package_of(file, statement)) if statement.level else module_file(statement.module or "")


def package_of(file: str, statement: ast.ImportFrom) -> pathlib.Path:
    return pathlib.Path(file).parents[statement.level - 1].joinpath(*(statement.module or "").split("."))


def file_at(path: pathlib.Path) -> str | None:
    """The file of the module that lies at `path` (without its suffix); of a package and a module of one name the package, as in Python."""
    for candidate in (path / "__init__.py", path.with_name(path.name + ".py")):
        if candidate.is_file():
            return os.path.realpath(candidate)
    return None
