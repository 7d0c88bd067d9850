"""What counts as a change of a user's code."""

import itertools
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from marin.errors import FingerprintError
from marin.execution.code_digest import code_digest
from marin.execution.source_files import is_user_space

SOURCE = '''
"""An experiment."""
import dataclasses
import functools
from marin.execution import ExecutorStep, this_output_path
from LIBRARY import helper

WIDTH = 4

def unused():
    return 1

def double(x):
    """Twice."""
    return 2 * x + WIDTH  # why not

class Base:
    def build(self):
        return double(1) + helper()

@dataclasses.dataclass(frozen=True)
class Model(Base):
    layers: int = 2

@functools.lru_cache
def run(config):
    return Model().build()
'''
LIBRARY = "SCALE = 3\n\ndef helper():\n    return SCALE\n\ndef other():\n    return 0\n"

_numbers = itertools.count()


@pytest.fixture
def digest(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Imports the source, with one text replaced by another, and returns the digest of one of its definitions."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def measure(old: str = "", new: str = "", name: str = "run") -> str:
        number = next(_numbers)
        library = LIBRARY.replace(old, new) if old else LIBRARY
        source = SOURCE.replace(old, new) if old else SOURCE
        (tmp_path / f"digest_library_{number}.py").write_text(library)
        (tmp_path / f"digest_experiment_{number}.py").write_text(source.replace("LIBRARY", f"digest_library_{number}"))
        module = __import__(f"digest_experiment_{number}")
        return code_digest(getattr(module, name))

    return measure


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# why not", "# because"),
        ('"""Twice."""', ""),
        ("An experiment", "Another"),
        ("2 * x + WIDTH", "(2 * x\n            + WIDTH)"),
        ("def unused():\n    return 1", "def unused():\n    return 2"),
        ("def other():\n    return 0", "def other():\n    return 1"),
    ],
)
def test_digest_of_an_edit_that_changes_nothing_is_the_same(digest: Callable[..., str], old: str, new: str) -> None:
    assert digest(old, new) == digest()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WIDTH = 4", "WIDTH = 5"),
        ("2 * x", "3 * x"),
        ("layers: int = 2", "layers: int = 3"),
        ("double(1)", "double(2)"),
        ("lru_cache", "cache"),
        ("SCALE = 3", "SCALE = 4"),
    ],
)
def test_digest_of_an_edit_that_counts_differs(digest: Callable[..., str], old: str, new: str) -> None:
    assert digest(old, new) != digest()


@pytest.fixture
def digest_of(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The digest of `run` in `exp.py`, of files given by name, after the files are imported as a user's program would."""

    def measure(sources: Mapping[str, str], hash_seed: str = "random") -> str:
        directory = tmp_path / str(next(_numbers))
        for name, source in sources.items():
            file = directory / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        program = "from marin.execution.code_digest import code_digest\nimport exp\nprint(code_digest(exp.run))"
        environment = {"PYTHONPATH": f"{directory}:{pathlib.Path.cwd()}", "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    return measure


@pytest.mark.parametrize(
    "source",
    [
        "import pkg.inner.sub\ndef run(config):\n    return pkg.inner.scaled(pkg.inner.sub.ONE)\n",
        "def run(config):\n    import pkg.inner.sub\n    return pkg.inner.scaled(pkg.inner.sub.ONE)\n",
    ],
)
@pytest.mark.parametrize("edited", ["pkg/__init__.py", "pkg/inner/__init__.py", "pkg/inner/sub.py"])
def test_digest_of_an_import_of_a_submodule_covers_the_packages_around_it(
    digest_of: Callable[[Mapping[str, str]], str], source: str, edited: str
) -> None:
    files = {
        "exp.py": source,
        "pkg/__init__.py": "ONE = 1\n",
        "pkg/inner/__init__.py": "import pkg\nONE = 1\ndef scaled(x):\n    return ONE * pkg.ONE * x\n",
        "pkg/inner/sub.py": "ONE = 1\n",
    }
    assert digest_of({**files, edited: files[edited].replace("ONE = 1", "ONE = 2")}) != digest_of(files)


@pytest.mark.parametrize(
    "source", ["from pkg.exp import run\n", "def run(config):\n    from pkg.sub import f\n    return f()\n"]
)
def test_digest_takes_a_package_before_a_module_of_the_same_name(digest_of: Callable[..., str], source: str) -> None:
    files = {
        "exp.py": source,
        "pkg/__init__.py": "",
        "pkg/exp.py": "def run(config):\n    from .sub import f\n    return f()\n",
        "pkg/sub/__init__.py": "def f():\n    return 1\n",
        "pkg/sub.py": "def f():\n    return 2\n",
    }
    edited = {**files, "pkg/sub/__init__.py": files["pkg/sub.py"]}
    assert digest_of(edited) != digest_of(files) == digest_of({**files, "pkg/sub.py": ""})


def test_digest_imports_nothing_that_the_code_imports_only_when_it_runs(
    digest_of: Callable[[Mapping[str, str]], str],
) -> None:
    files = {
        "exp.py": "def run(config):\n    from heavy import f\n    from pkg.inner.sub import g\n    return f() + g()\n",
        "heavy.py": "raise RuntimeError('there is no GPU')\ndef f():\n    return 1\n",
        "pkg/__init__.py": "raise RuntimeError('there is no network')\n",
        "pkg/inner/sub.py": "def g():\n    return 1\n",
    }
    for edited in ("heavy.py", "pkg/inner/sub.py"):
        assert digest_of({**files, edited: files[edited].replace("return 1", "return 2")}) != digest_of(files)


@pytest.mark.parametrize("form", ["star", "module with a star", "name from a star", "relative star"])
def test_digest_follows_an_import_of_all_names(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """`from layers import *` in an experiment, and in the `__init__.py` of a package of a user's own."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def measure(old: str = "", new: str = "") -> str:
        name = f"digest_stars_{next(_numbers)}"
        package = tmp_path / name
        package.mkdir()
        (package / "parts.py").write_text(LIBRARY.replace(old, new) if old else LIBRARY)
        (package / "__init__.py").write_text("" if form == "star" else "from .parts import *\n")
        imports = {
            "star": f"from {name}.parts import *",
            "module with a star": f"import {name} as tools",
            "name from a star": f"from {name} import helper",
            "relative star": f"from {name} import *",
        }[form]
        source = SOURCE.replace("from LIBRARY import helper", imports)
        if form == "module with a star":
            source = source.replace("helper()", "tools.helper()")
        (tmp_path / f"{name}_experiment.py").write_text(source)
        return code_digest(__import__(f"{name}_experiment").run)

    assert measure("SCALE = 3", "SCALE = 4") != measure()
    if form != "module with a star":  # of which all counts
        assert measure("return 0", "return 1") == measure()


@pytest.mark.parametrize(
    "call", ["WIDTHS.append({})", "for width in [{}]:\n    WIDTHS.append(width)", "WIDTHS[0].update(a={})"]
)
def test_digest_sees_what_a_call_at_the_top_level_does_to_a_value(digest: Callable[..., str], call: str) -> None:
    def measure(value: int) -> str:
        return digest("WIDTH = 4\n", f"WIDTHS = [{{}}]\n{call.format(value)}\nWIDTH = WIDTHS\n")

    assert measure(5) != measure(6)
    assert measure(5) == measure(5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A = []\nA.append(1)", "A = []\nA.append(1)\nA.append(1)"),
        ("A = []\nA.append(1)\nA.append(2)", "A = []\nA.append(2)\nA.append(1)"),
        ("A = 1\nA = 2", "A = 2\nA = 1"),
        ("A = 1\nB = A\nA = 2", "A = 1\nA = 2\nB = A"),
        ("A = 1\ndef f(x=A):\n    return x\nA = 2\nB = f()", "A = 1\nA = 2\ndef f(x=A):\n    return x\nB = f()"),
    ],
)
def test_digest_sees_how_often_and_in_which_order_a_value_is_changed(
    digest_of: Callable[[Mapping[str, str]], str], one: str, other: str
) -> None:
    run = "\ndef run(config):\n    return A, B\n"
    assert digest_of({"exp.py": f"B = 0\n{one}{run}"}) != digest_of({"exp.py": f"B = 0\n{other}{run}"})


@pytest.mark.parametrize(
    "statement",
    [
        "for A in [0, 1]:\n    pass",
        "with contextlib.nullcontext(1) as A:\n    pass",
        "if (A := 1) > 0:\n    pass",
        "print(A := 1)",
        "match 1:\n    case A:\n        pass",
        "match [0, 1]:\n    case [0, *A]:\n        pass",
        "match {'a': 1}:\n    case {**A}:\n        pass",
    ],
)
def test_digest_sees_every_statement_that_binds_a_name(
    digest_of: Callable[[Mapping[str, str]], str], statement: str
) -> None:
    source = f"import contextlib\n{statement}\ndef run(config):\n    return A\n"
    assert digest_of({"exp.py": source}) != digest_of({"exp.py": source.replace("1", "2")})


@pytest.mark.parametrize(
    "block",
    ["if __name__ != '__main__':\n    A = 1", "if __name__ == '__main__':\n    pass\nelse:\n    A = 1"],
)
def test_digest_sees_what_runs_only_when_the_file_is_imported(
    digest_of: Callable[[Mapping[str, str]], str], block: str
) -> None:
    source = f"A = 0\n{block}\ndef run(config):\n    return A\n"
    assert digest_of({"exp.py": source}) != digest_of({"exp.py": source.replace("A = 1", "A = 2")})


REGISTER = "def register(f):\n    R[f.__name__] = f\n    return f\n"
REGISTER_AS = "def register(name):\n    def keep(f):\n        R.update({name: f})\n        return f\n    return keep\n"
DOUBLE = "def double(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    "source",
    [
        f"R = {{}}\n{REGISTER}@register\n{DOUBLE}",
        f"R = {{}}\n{REGISTER}{DOUBLE}register(double)\n",
        f"R = {{}}\n{REGISTER}def also(f):\n    register(f)\n{DOUBLE}also(double)\n",
        f"R = {{}}\n{REGISTER_AS}@register('double')\n{DOUBLE}",
        f"class Table:\n    def add(self, f):\n        self.f = f\nR = Table()\n@R.add\n{DOUBLE}",
        "R = 0\ndef set_up(n):\n    global R\n    R = n\nset_up(1)\n",
        "R = [0]\ndef set_up(n):\n    R[0] += n\nset_up(1)\n",
        "class R:\n    x = 0\nsetattr(R, 'x', 1)\n",
        "import random\nR = [3, 4, 5]\nrandom.Random(1).shuffle(R)\n",
    ],
)
def test_digest_sees_what_functions_called_at_the_top_level_do_to_a_value(
    digest_of: Callable[[Mapping[str, str]], str], source: str
) -> None:
    source += "UNUSED = 7\nprint(R)\ndef run(config):\n    return R\n"
    assert digest_of({"exp.py": source}) != digest_of({"exp.py": source.replace("1", "2")})
    quiet = source.replace("print(R)\n", "").replace("7", "8")
    assert digest_of({"exp.py": source}) == digest_of({"exp.py": quiet})


ONE_AND_TWO = {"one.py": "def f():\n    return 1\n", "two.py": "def f():\n    return 2\ndef g():\n    return 3\n"}


@pytest.mark.parametrize(
    ("imports", "others", "use"),
    [
        ("from math import sin as act", "from math import cos as act", "act(1)"),
        ("from math import sqrt", "from cmath import sqrt", "sqrt(1)"),
        ("from math import *", "from cmath import *", "sqrt(1)"),
        ("import math as np", "import cmath as np", "np.sqrt(1)"),
        ("import numpy as np", "import jax.numpy as np", "np.sqrt(1)"),
        ("try:\n    import math as m\nexcept ImportError:\n    m = 0", "try:\n    import cmath as m\nexcept ImportError:\n    m = 0", "m"),
        ("from two import f as a, g as b", "from two import g as a, f as b", "a() - b()"),
        ("import one as a, two as b", "import two as a, one as b", "a.f() - b.f()"),
        ("import one, two\nfrom one import f", "import one, two\nfrom two import f", "one, two, f()"),
        ("from one import *\nfrom two import *", "from two import *\nfrom one import *", "f()"),
    ],
)  # fmt: skip
def test_digest_sees_where_a_name_is_imported_from(
    digest_of: Callable[[Mapping[str, str]], str], imports: str, others: str, use: str
) -> None:
    run = f"\ndef run(config):\n    return {use}\n"
    assert digest_of({"exp.py": imports + run, **ONE_AND_TWO}) != digest_of({"exp.py": others + run, **ONE_AND_TWO})


def test_digest_sees_that_two_files_swap_what_they_define_alike(digest_of: Callable[[Mapping[str, str]], str]) -> None:
    files = {"exp.py": "import one, two\ndef run(config):\n    return one.f() - two.f()\n", **ONE_AND_TWO}
    assert digest_of({**files, "one.py": files["two.py"], "two.py": files["one.py"]}) != digest_of(files)


def test_digest_does_not_see_how_imports_are_written(digest_of: Callable[[Mapping[str, str]], str]) -> None:
    run = "def run(config):\n    return math.pi, np.pi, g(), this_output_path\n"
    forms = [
        "import math\nimport numpy as np\nfrom marin.execution import this_output_path\nfrom two import f, g\n",
        "import numpy as np, math, os\nfrom two import g\nfrom marin.execution.step import this_output_path\n",
    ]
    assert len({digest_of({"exp.py": form + run, **ONE_AND_TWO}) for form in forms}) == 1


@pytest.mark.parametrize(
    "files",
    [
        {"exp.py": "import os\nos.environ['A'] = '1'\n"},
        {"exp.py": "import random\nrandom.seed(1)\n"},
        {"exp.py": "import logging, random\nrandom.seed(1)\n"},
        {"exp.py": "from random import seed\nseed(1)\n"},
        {"exp.py": "import random\ndef prepare():\n    random.seed(1)\nprepare()\n"},
        {"exp.py": "def begin():\n    prepare()\ndef prepare():\n    import random\n    random.seed(1)\nbegin()\n"},
        {"exp.py": "import lib\nlib.S = 1\n", "lib.py": "S = 0\n"},
        {"exp.py": "import lib\n", "lib.py": "from table import S\nS |= {1}\n", "table.py": "S = set()\n"},
        {"exp.py": "import lib\nsetattr(lib, 'S', 1)\n", "lib.py": "S = 0\n"},
        {"exp.py": "import pkg.sub\n", "pkg/__init__.py": "import random\nrandom.seed(1)\n", "pkg/sub.py": ""},
        {"exp.py": "from pkg.sub import f\n", "pkg/__init__.py": "from . import sub\nsub.S = 1\n",
         "pkg/sub.py": "S = 0\ndef f():\n    return S\n"},
        {"exp.py": "import pkg.sub\n", "pkg/__init__.py": "", "pkg/sub.py": "from .logging import S\nS.append(1)\n",
         "pkg/logging.py": "S = []\n"},
        {"exp.py": "from pkg import sub\n", "pkg/__init__.py": "", "pkg/sub.py": "import random\nrandom.seed(1)\n"},
        {"exp.py": f"from lib import R, register\n@register\n{DOUBLE}", "lib.py": f"R = {{}}\n{REGISTER}"},
        {"exp.py": f"from lib import R, register_as\n@register_as('a')\n{DOUBLE}",
         "lib.py": f"R = {{}}\n{REGISTER_AS.replace('register', 'register_as')}"},
    ],
)  # fmt: skip
def test_digest_sees_what_importing_a_file_does_to_other_modules(
    digest_of: Callable[[Mapping[str, str]], str], files: Mapping[str, str]
) -> None:
    run = "def run(config):\n    return 0\n"
    changed = {name: source.replace("1", "2") for name, source in files.items()}
    assert digest_of({**files, "exp.py": files["exp.py"] + run}) != digest_of(
        {**changed, "exp.py": changed["exp.py"] + run}
    )


def test_digest_does_not_see_what_starts_the_run_logs_and_prints(
    digest_of: Callable[[Mapping[str, str]], str],
) -> None:
    source = (
        "import os, logging\nfrom marin.execution.executor import executor_main\n"
        "logging.basicConfig(level=1)\nlogging.getLogger('1').setLevel(1)\nprint(os.sep, 1)\ndef run(config):\n    return os.sep\n"
        "if os.environ.get('RUN_ME') == '1':\n    executor_main(steps=[], description='1')\n"
    )
    assert digest_of({"exp.py": source}) == digest_of({"exp.py": source.replace("1", "2")})


def test_digest_does_not_see_what_is_logged(digest_of: Callable[[Mapping[str, str]], str]) -> None:
    begin = "import logging\nSIZES = [1]\nlog = logging.getLogger('a')\n"
    end = "def show():\n    log.info('%s', SIZES)\ndef run(config):\n    log.info('runs')\n    return SIZES\n"
    quiet = digest_of({"exp.py": begin + end})
    assert digest_of({"exp.py": begin + "log.info('sizes %s', SIZES)\n" + end}) == quiet
    assert digest_of({"exp.py": begin + end + "show()\n"}) == quiet
    assert digest_of({"exp.py": begin + "log.setLevel(SIZES[0])\n" + end}) != quiet
    own = begin.replace("log = logging.getLogger('a')", "class Log:\n    info = SIZES.extend\nlog = Log()")
    assert digest_of({"exp.py": own + "log.info(SIZES)\n" + end}) != digest_of({"exp.py": own + end})


def test_digest_does_not_see_what_functions_do_that_only_the_main_block_calls(
    digest_of: Callable[[Mapping[str, str]], str],
) -> None:
    source = (
        "import random\ndef run(config):\n    return random\ndef main():\n    random.seed(1)\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    assert digest_of({"exp.py": source}) == digest_of({"exp.py": source.replace("1", "2")})


def test_digest_does_not_take_the_name_of_a_comprehension_for_one_of_the_file(
    digest_of: Callable[[Mapping[str, str]], str],
) -> None:
    source = "UNUSED = [x for x in (1, 2)]\ndef run(config):\n    x = config\n    return x\n"
    assert digest_of({"exp.py": source}) == digest_of({"exp.py": source.replace("1", "3")})


def test_digest_does_not_see_in_which_order_independent_names_are_defined(
    digest_of: Callable[[Mapping[str, str]], str],
) -> None:
    definitions = [
        "A = 1\n",
        "def double(x):\n    return 2 * x\n",
        "B = 2\n",
        "def run(config):\n    return double(A) + B\n",
    ]
    assert len({digest_of({"exp.py": "".join(order)}) for order in (definitions, definitions[::-1])}) == 1


def test_digest_of_names_from_several_stars_is_the_same_in_every_process(digest_of: Callable[..., str]) -> None:
    files = {
        "exp.py": "import m\ndef run(config):\n    return m.A\n",
        "m.py": "from one import *\nfrom two import *\nA, B = None, None\nA = f()\nB = g()\n",
        "one.py": "def f():\n    return 1\n",
        "two.py": "def g():\n    return 2\n",
    }
    assert len({digest_of(files, hash_seed) for hash_seed in "123456"}) == 1


def test_digest_is_the_same_on_every_python_version(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "digest_golden.py").write_text(
        "import functools\nNAMES = {'a': [1, 2.5, 1j, b'x', None, ...], **{}}\n"
        "class Outer:\n    'Doc.'\n    x: int = 3\n    async def f(self, a, /, b=1, *c, d, **e):\n        await self\n"
        "@functools.cache\ndef run(config: dict[str, int]) -> str:\n    total = (lambda y: -y)(2)\n"
        "    match config:\n        case {'a': [first, *_]} if (n := first) > 1:\n            return f'{n!r:>{total}} {n=} {{}}' 'tail'\n"
        "    try:\n        return [v for v in NAMES if v][::2]\n    except (ValueError, Outer) as error:\n        raise error from None\n"
    )
    module = __import__("digest_golden")
    assert code_digest(module.run) == "0c557013786ac519d7438bfadacd78689ef47da95b322dafe5dd8abcc674f56c"


def test_digest_of_a_definition_that_an_edit_does_not_reach_is_the_same(digest: Callable[..., str]) -> None:
    assert digest("layers: int = 2", "layers: int = 3", name="double") == digest(name="double")


def test_digest_of_an_expression_too_deep_to_be_read_is_refused_by_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    total = " + ".join(["1"] * 2500)
    (tmp_path / "digest_deep.py").write_text(f"TOTAL = {total}\ndef run(config):\n    return TOTAL\n")
    with pytest.raises(
        FingerprintError, match="`run` needs an expression that is nested too deeply.*several statements"
    ):
        code_digest(__import__("digest_deep").run)


def test_user_space_is_what_lies_outside_marin_and_installed_packages() -> None:
    assert is_user_space(test_user_space_is_what_lies_outside_marin_and_installed_packages)
    assert not any(is_user_space(thing) for thing in (code_digest, pathlib.Path, pytest.raises, len, int))


def test_fingerprint_of_a_file_run_as_a_script_and_imported_is_one(tmp_path: pathlib.Path) -> None:
    (tmp_path / "both_ways.py").write_text(
        "import dataclasses\nfrom marin.execution import ExecutorStep\nfrom marin.execution.graph import Graph\n"
        "@dataclasses.dataclass\nclass Config:\n    x: int = 1\n"
        "def run(config):\n    return Config\n"
        "def show():\n    step = ExecutorStep('a', run, Config())\n    print(Graph([step], '/p').node(step).fingerprint)\n"
        "if __name__ == '__main__':\n    x = 1\n    show()\n"
    )
    printed = []
    for arguments in (["both_ways.py"], ["-m", "both_ways"], ["-c", "import both_ways; both_ways.show()"]):
        command = [sys.executable, *arguments]
        environment = {"PYTHONPATH": str(pathlib.Path.cwd())}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        printed.append(done.stdout)
    assert len(set(printed)) == 1
    assert len(printed[0]) == 65
