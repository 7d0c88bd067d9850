"""Configs whose fingerprints must never change, as outputs that people have computed are found by them.

Run as a program, it prints the fingerprints as JSON. It then needs no package but Marin itself, so that any Python can
run it. Its definitions are part of what is pinned: add to them, but change none.
"""

import collections
import dataclasses
import enum
import functools
import json
import math
import os
import pathlib
import sys
import types
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
if __name__ == "__main__":  # the rest of the package needs psutil, which another Python may not have
    sys.path.insert(0, str(ROOT))
    package = types.ModuleType("marin.execution")
    package.__path__ = [str(ROOT / "marin" / "execution")]
    sys.modules["marin.execution"] = package

from marin.execution.fingerprint import identify  # noqa: E402
from marin.execution.step import ExecutorStep, InputName, placement, this_output_path, versioned  # noqa: E402
from marin.resources import CpuOnlyConfig, GpuConfig, Resources  # noqa: E402


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 0


class Letters(enum.Flag):
    A = 1
    B = 2


Pair = collections.namedtuple("Pair", "a b")


class Names(list):
    pass


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    kind: Colour = Colour.RED


@dataclasses.dataclass(frozen=True)
class Config(Inner):
    value: Any = None
    workers: int = placement(default=4)
    resources: Resources | None = None
    output_path: str = this_output_path()
    derived: str = dataclasses.field(init=False, default="x")


@dataclasses.dataclass
class Empty:
    pass


def work(config):
    return Inner


@functools.lru_cache
def cached(config):
    pass


def configs() -> dict[str, Any]:
    source = ExecutorStep("source", work, Config(value=[1, "a"]))
    other = ExecutorStep("other", json.dumps, {"in": source / "x"})
    return {
        "scalars": [None, True, 0, -7, 10**30, 1.5, -0.0, 0.0, math.nan, math.inf, "a", "ü\ud800", b"\x00", "", "None"],
        "paths": [pathlib.PurePosixPath("a/b"), pathlib.PurePath("c")],
        "containers": {
            "b": [1, (2, [3])],
            "a": {"x", "y"},
            3: frozenset((1, 2)),
            "e": [{}, [], (), set()],
            "n": Names(["q"]),
            "p": Pair(1, "z"),
        },
        "dataclasses": Config(value=Inner(kind=Colour.BLUE)),
        "placed": Config(value=Empty(), workers=9, resources=CpuOnlyConfig(3)),
        "enums": [Colour.RED, Level.LOW, Letters.A | Letters.B, Colour],
        "named": [
            work, cached, Config, json.dumps, os.getcwd, len, int, math.sin,
            functools.partial(work, 1, k=[2]), pathlib.PurePath,
        ],
        "references": Config(
            value=[
                source, source / "a", source.nonblocking(), other.nonblocking() / "b", InputName.hardcoded("h"),
                this_output_path("o"), versioned(versioned((source,))), source / pathlib.PurePosixPath("p"),
            ]
        ),
        "resources": {"gpu": GpuConfig(), "cpu": [CpuOnlyConfig()]},
        "deep": [[[[{"k": {"l": (Inner(), Inner(0.2))}}]]]],
    }  # fmt: skip


def fingerprint(config: Any) -> str:
    def of(step: ExecutorStep) -> str:
        return identify(step, of).fingerprint

    return of(ExecutorStep("s", work, config))


if __name__ == "__main__":
    print(json.dumps({name: fingerprint(config) for name, config in configs().items()}))
