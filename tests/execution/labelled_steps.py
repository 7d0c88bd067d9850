"""Steps with a label, which note that they ran and fail when a test wants it."""

import dataclasses
import pathlib
from typing import Any, ClassVar

from marin.execution import ExecutorStep, this_output_path

CALLS: list[str] = []
FAILURES: dict[str, BaseException] = {}


@dataclasses.dataclass(frozen=True)
class Config:
    label: str
    inputs: Any = ()
    rate: float = 0.1
    hf_token: str | None = None
    output_path: str = this_output_path()

    def dry_run_info(self) -> str | None:
        return f"info of {self.label}" if self.label == "c" else None


@dataclasses.dataclass(frozen=True)
class ResumableConfig(Config):
    marin_resumable: ClassVar[bool] = True


def work(config: Config) -> None:
    CALLS.append(config.label)
    path = pathlib.Path(config.output_path, "log.txt")
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{before}{config.label}\n")
    if config.label in FAILURES:
        raise FAILURES[config.label]


def step(label: str, *inputs: ExecutorStep, kind: type[Config] = Config, **options: Any) -> ExecutorStep:
    rate = options.pop("rate", 0.1)
    return ExecutorStep(f"steps/{label}", work, kind(label, inputs, rate), **options)


def diamond() -> ExecutorStep:
    a = step("a")
    return step("d", step("b", a), step("c", a))


def kinds(results: dict[Any, Any]) -> dict[str, str]:
    return {node.name[-1]: result.kind for node, result in results.items()}
