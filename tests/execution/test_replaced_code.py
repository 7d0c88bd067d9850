"""Names behind which there is other code than their files have; this file is user space, as an experiment's is."""

import functools
import json
import os
import pathlib
import runpy
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable

import pytest

from marin import hardware
from marin.execution.replaced_code import _Source, _source, read_sources, replaced_code
from marin.tracking import run_record


@pytest.fixture
def newly_replaced() -> Callable[[], set[str]]:
    before = set(replaced_code())
    return lambda: set(replaced_code()) - before


def _half(*given, **named):
    return 0.5


class Imitation:
    """An object in the place of a module."""

    def __getattr__(self, name):
        return getattr(time, name)

    def perf_counter(self):
        return time.perf_counter() / 2


def test_names_of_other_modules_that_user_code_took_are_found(newly_replaced, monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(json, "dumps", functools.partial(_half))
    monkeypatch.setattr(pathlib.Path, "read_text", _half)
    monkeypatch.setattr(hardware.Device, "peak", property(_half))
    monkeypatch.setattr(hardware, "measure_cpu_peak", functools.wraps(hardware.measure_cpu_peak)(_half))
    monkeypatch.setattr(run_record, "time", Imitation())
    monkeypatch.setattr(run_record, "RunRecord", Imitation)
    assert newly_replaced() == {
        *("time.perf_counter", "json.dumps", "pathlib.Path.read_text", "marin.hardware.Device.peak"),
        *("marin.hardware.measure_cpu_peak", "marin.tracking.run_record.time", "marin.tracking.run_record.RunRecord"),
    }


def test_code_without_a_file_is_found_in_a_module_that_has_no_python_code(newly_replaced, monkeypatch):
    monkeypatch.setattr(time, "monotonic", eval(compile("lambda: 0.0", "<stdin>", "eval")))
    assert newly_replaced() == {"time.monotonic"}


def test_code_that_no_file_of_marin_has_is_found(newly_replaced, monkeypatch):
    changed: dict[str, object] = {"__name__": "changed"}
    exec(compile("def lookup_device(name):\n    return None\n", hardware.__file__, "exec"), changed)
    monkeypatch.setattr(hardware.lookup_device, "__code__", changed["lookup_device"].__code__)
    monkeypatch.setattr(run_record, "MOST_HELD", 2**30)
    assert newly_replaced() == {"marin.hardware.lookup_device", "marin.tracking.run_record.MOST_HELD"}


def test_files_that_were_read_before_are_not_read_again_and_what_was_changed_since_is_found(
    newly_replaced, monkeypatch
):
    _source.cache_clear()
    read_sources()
    read = _source.cache_info().misses
    assert read > 10
    changed: dict[str, object] = {"__name__": "changed"}
    exec(compile("def lookup_device(name):\n    return None\n", hardware.__file__, "exec"), changed)
    monkeypatch.setattr(hardware.lookup_device, "__code__", changed["lookup_device"].__code__)
    assert newly_replaced() == {"marin.hardware.lookup_device"}
    assert _source.cache_info().misses == read


def test_what_python_calls_at_every_function_or_import_is_found(newly_replaced, monkeypatch):
    class Finder:
        def find_spec(self, name, path, target=None):
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, value: None)
    try:
        found = newly_replaced()
    finally:
        sys.setprofile(before)
    assert found == {"sys.meta_path", "sys.setprofile"}


def test_names_of_ones_own_and_hooks_are_no_finding(newly_replaced, monkeypatch):
    class Own(hardware.Device):
        pass

    Own.peak = _half
    monkeypatch.setattr(sys, "excepthook", _half)
    monkeypatch.setattr(warnings, "showwarning", _half)
    monkeypatch.setitem(sys.modules, "own_module", types.ModuleType("own_module"))
    sys.modules["own_module"].function = _half
    assert newly_replaced() == set()


def test_many_are_counted(newly_replaced, monkeypatch):
    for name in [name for name, value in vars(run_record).items() if isinstance(value, types.FunctionType)]:
        monkeypatch.setattr(run_record, name, _half)
    for name in [name for name, value in vars(hardware).items() if isinstance(value, types.FunctionType)]:
        monkeypatch.setattr(hardware, name, _half)
    found = replaced_code()
    assert len(found) == 17 and found[-1].endswith(" more")


def test_a_process_that_trains_has_replaced_nothing(repository):
    """With all that an experiment imports, as Python, packages and Marin are."""
    code = (
        "import jax, orbax.checkpoint, experiments.speedrun.hello_world.main, marin.speedrun.steps\n"
        "from marin.execution.replaced_code import replaced_code\nprint(replaced_code())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("is_installed", "found"), [(True, "[]"), (False, "['json.dumps']")])
def test_what_a_package_replaces_is_no_finding_wherever_it_was_installed(repository, tmp_path, is_installed, found):
    """As by `pip install --target`."""
    (tmp_path / "patching.py").write_text("import json\n\ndef dumps(value):\n    return ''\n\njson.dumps = dumps\n")
    if is_installed:
        (tmp_path / "patching-1.0.dist-info").mkdir()
        (tmp_path / "patching-1.0.dist-info" / "METADATA").write_text("Name: patching\nVersion: 1.0\n")
    code = "import patching\nfrom marin.execution.replaced_code import replaced_code\nprint(replaced_code())"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}{os.pathsep}{repository}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found


TEXT = '''"""
SHOWN = 1
"""
import math

PLAIN = 3  # \u2028 is no end of a line
TYPED: int = 2**4
LONG = (
    "a",
    PLAIN,
)
TEXTS = """
INNER = 5
"""
ONE, TWO = 1, 2
CALLED = math.log(2.0)
MADE = list((1, 2))
TWICE = 1
TWICE = 2
FROM_FUNCTION = 1
LOCAL = 7
FIRST = 1; SECOND = 2
if PLAIN:
    UNDER = 1

def function():
    global FROM_FUNCTION
    FROM_FUNCTION = LOCAL = 2

class Class:
    PLAIN = 4
'''


@pytest.mark.parametrize("name", ["PLAIN", "TYPED", "LONG", "TEXTS", "CALLED", "LOCAL"])
def test_constant_that_the_text_gives_a_value_once_is_held_against_it(name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "module.py").write_text(TEXT)
    source, names = _Source(str(tmp_path / "module.py")), runpy.run_path(str(tmp_path / "module.py"))
    assert list(source.changed_constants(names)) == []
    assert name in set(source.changed_constants(names | {name: 0.5}))


@pytest.mark.parametrize("name", ["ONE", "MADE", "TWICE", "FROM_FUNCTION", "UNDER", "FIRST", "function"])
def test_name_whose_value_does_not_follow_from_one_statement_is_not(name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "module.py").write_text(TEXT)
    names = runpy.run_path(str(tmp_path / "module.py"))
    assert name in names
    assert list(_Source(str(tmp_path / "module.py")).changed_constants(names | {name: 0.5})) == []
