"""What of the code that this process runs is not what its files say.

An experiment's file is imported by the process that trains and scores, where it can give another meaning to any name: by mistake, as
the quickest way to try an idea, or to be measured otherwise. Looked at are, as they stand when this is asked,

- the names in modules of Marin, of Python and of the packages that figures depend on, and in their classes: whether what they
  name was defined in user space (an experiment's file);
- functions of Marin, and numbers and texts at the top level of its files: whether they are what the file makes of them, which finds a
  module that was changed while it was imported, or compiled from another file;
- what Python calls at every line, function or import.

This finds what is done in the plain way. What is put back before, done to objects that no module names or below Python, or done to this
module too, is not found.
"""

import ast
import collections
import dis
import functools
import importlib.metadata
import os
import pathlib
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from marin.execution.source_files import is_user_file

_PACKAGES = frozenset({"marin", "jax", "jaxlib", "numpy", "equinox", "optax", *sys.stdlib_module_names} - {"sys"})
# Python means these to be replaced, and no figure comes from them.
_HOOKS = frozenset({"builtins._", "threading.excepthook", "warnings.formatwarning", "warnings.showwarning"})
_MOST_NAMED = 16
_MOST_LINES = 200  # of a constant
_ASSIGNMENT = re.compile(r"(\w+)\s*(?::[^=]+)?=(?!=)")
_STORE_NAME, _STORE_GLOBAL = dis.opmap["STORE_NAME"], dis.opmap["STORE_GLOBAL"]
# Of most values in modules, which are neither code nor of a class that somebody wrote.
_PLAIN = frozenset(
    {bool, bytes, dict, float, int, list, set, str, tuple, type(None), types.BuiltinFunctionType, types.ModuleType}
    | {types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType}
)
# What an expression may be made of whose value follows from its text; names are those of `math` and of other constants.
_CONSTANT = (
    *(ast.Constant, ast.Name, ast.Load, ast.Attribute, ast.Call, ast.Tuple),
    *(ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop),
)


def replaced_code() -> list[str]:
    """Names, such as "marin.evaluation.scoring.Scorer.nats", behind which there is other code; the first 16, and how many more."""
    found = sorted({*_replaced_names(), *_hooks()})
    more = len(found) - _MOST_NAMED
    return found if more <= 0 else [*found[:_MOST_NAMED], f"{more} more"]


def read_sources() -> None:
    """Reads and compiles Marin's files as far as they are imported, which is most of the time of `replaced_code`, for that to use."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name.partition(".")[0] == "marin" and not _is_user(file):
            _source(_real(file))


def _replaced_names() -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _PACKAGES:
            continue
        file = getattr(module, "__file__", None)
        if name not in sys.builtin_module_names and (file is None or _is_user(file)):
            continue
        source: _Compiled | None = _Compiled() if file is None else None
        if file and name.partition(".")[0] == "marin":
            source = _source(_real(file))
        yield from (f"{name}.{place}" for place in _replaced_in(module, source) if f"{name}.{place}" not in _HOOKS)


def _replaced_in(module: types.ModuleType, source: "_Compiled | None") -> Iterator[str]:
    for name, value in list(vars(module).items()):
        if _is_other(value, source):
            yield name
        elif isinstance(value, type) and value.__module__ == module.__name__:
            yield from (f"{name}.{part}" for part, inner in list(vars(value).items()) if _is_other(inner, source))
    if source is not None:
        yield from source.changed_constants(vars(module))


def _hooks() -> Iterator[str]:
    if _is_other(sys.gettrace(), None):
        yield "sys.settrace"
    if _is_other(sys.getprofile(), None):
        yield "sys.setprofile"
    if any(_is_other(finder, None) for finder in sys.meta_path):
        yield "sys.meta_path"


def _is_other(value: Any, source: "_Compiled | None") -> bool:
    """Whether a value is of user space, or a function that neither a file of Marin nor a library has.

    Args:
        source: of the module in which the value has a name, if that is one of Marin's or within the interpreter.
    """
    kind = type(value)
    if kind in _PLAIN:
        return False
    if isinstance(value, type):
        return _is_user_module(value.__module__)
    codes = list(_codes_in(value))
    if not codes:
        return _is_user_module(kind.__module__)
    return any(_is_user(code.co_filename) or (source is not None and source.lacks(code)) for code in codes)


def _codes_in(value: Any) -> Iterator[types.CodeType]:
    """The code of a function, and of those that it wraps."""
    if isinstance(value, types.FunctionType):
        yield value.__code__
        inner = [value.__dict__.get("__wrapped__")]
    elif isinstance(value, types.MethodType | staticmethod | classmethod):
        inner = [value.__func__]
    elif isinstance(value, property):
        inner = [value.fget, value.fset, value.fdel]
    elif isinstance(value, functools.partial | functools.cached_property):
        inner = [value.func]
    else:  # jax.jit, functools.cache and the methods of Equinox; not what answers to every name
        inner = [getattr(value, "__dict__", {}).get("__wrapped__")]
    for each in inner:
        if each is not None:
            yield from _codes_in(each)


@functools.cache
def _is_user(file: str) -> bool:
    # "<string>" and the like are made by `dataclass`, "<frozen os>" by the interpreter.
    if file.startswith("<") or not is_user_file(_real(file)):
        return False
    return not any(parent in _installed_in() for parent in map(str, pathlib.PurePath(_real(file)).parents))


@functools.cache
def _installed_in() -> frozenset[str]:
    """Folders in which packages were installed (`pip install --target`), but for a checkout that is one itself."""
    found = {_real(str(package.locate_file(""))) for package in importlib.metadata.distributions()}
    checkout = pathlib.PurePath(_real(__file__)).parents[2]
    return frozenset(folder for folder in found if not checkout.is_relative_to(folder))


_real = functools.cache(os.path.realpath)


@functools.cache
def _is_user_module(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and _is_user(file)


class _Compiled:
    """A module within the interpreter, as `time` is: what Python code it has came to it from outside."""

    def lacks(self, code: types.CodeType) -> bool:
        return code.co_filename.startswith("<") and not code.co_filename.startswith("<frozen ")

    def changed_constants(self, names: Mapping[str, Any]) -> Iterator[str]:
        return iter(())


class _Source(_Compiled):
    """What a file of Marin's defines, by its text."""

    def __init__(self, file: str) -> None:
        self._file = file
        text = pathlib.Path(file).read_bytes()
        self._codes: dict[str, set[types.CodeType]] = collections.defaultdict(set)
        module = compile(text, file, "exec", dont_inherit=True)
        self._add(module)
        self._constants = _constants_of(text.decode(), module)

    def _add(self, code: types.CodeType) -> None:
        self._codes[code.co_qualname].add(code)
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._add(inner)

    def lacks(self, code: types.CodeType) -> bool:
        """Whether code that says that it is of this file is not."""
        return _real(code.co_filename) == self._file and code not in self._codes.get(code.co_qualname, ())

    def changed_constants(self, names: Mapping[str, Any]) -> Iterator[str]:
        for name, expression in self._constants.items():
            try:
                # Of a file of Marin's that this process has imported, and so evaluated before; nothing else is read so.
                value = eval(expression, dict(names))
            except Exception:  # whatever a name that was replaced raises
                yield name
                continue
            if name in names and (type(names[name]) is not type(value) or names[name] != value):
                yield name


@functools.cache
def _source(file: str) -> _Source:
    return _Source(file)


def _constants_of(text: str, module: types.CodeType) -> dict[str, types.CodeType]:
    """The names that a file gives a value once, at its top level, which follows from the text alone: from numbers, texts and `math`.

    Parsed are only the statements of which the code says that they store a name that nothing else does: to parse all of Marin takes a second.
    """
    stored: dict[str, list[int]] = collections.defaultdict(list)
    for name, line in _stored_at(module):
        stored[name].append(line)
    lines = [f"{line}\n" for line in text.split("\n")]  # as Python counts them
    found: dict[str, types.CodeType] = {}
    for name, at in stored.items():
        value = _value_of(name, lines[at[0] - 1 :]) if len(at) == 1 else None
        if value is None:
            continue
        parts = list(ast.walk(value))
        is_plain = all(isinstance(part, _CONSTANT) for part in parts)
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        if is_plain and names <= {"math", *found}:
            found[name] = compile(ast.Expression(value), "<constant>", "eval")
    return found


def _stored_at(module: types.CodeType) -> Iterator[tuple[str, int]]:
    """The names that a module's code gives values, and in which lines; its functions too, of their globals."""
    waiting = [module]
    while waiting:
        code = waiting.pop()
        waiting += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        wanted, raw, high = _STORE_NAME if code is module else _STORE_GLOBAL, code.co_code, 0
        if wanted not in raw[::2]:
            continue
        for operation, low, (line, *_) in zip(raw[::2], raw[1::2], code.co_positions(), strict=True):
            argument = high << 8 | low
            high = argument if operation == dis.EXTENDED_ARG else 0
            if operation == wanted and line is not None:
                yield code.co_names[argument], line


def _value_of(name: str, lines: list[str]) -> ast.expr | None:
    """What `name = value` gives a name, if the lines begin with that."""
    begins = _ASSIGNMENT.match(lines[0])
    if begins is None or begins[1] != name:
        return None
    for count in range(1, min(len(lines), _MOST_LINES) + 1):
        try:
            statements = ast.parse("".join(lines[:count])).body
        except SyntaxError:  # it goes on in the next line
            continue
        match statements:
            case [ast.Assign(targets=[ast.Name()], value=ast.expr() as value)]:
                return value
            case [ast.AnnAssign(target=ast.Name(), value=ast.expr() as value)]:
                return value
        return None
    return None
