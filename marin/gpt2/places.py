"""Where each stage of Time-to-GPT-2 reads and writes, and which run a later stage continues from.

    BASE/tokenizer                     tokenizer.json and what was measured of it
    BASE/base_data_climbmix            Parquet shards, the last one for validation
    BASE/base_checkpoints/TAG          a run of `scripts.base_train`
    BASE/chatsft_checkpoints/TAG       a run of `scripts.chat_sft`
    BASE/chatrl_checkpoints/TAG        a run of `scripts.chat_rl`
    BASE/base_eval                     CSV files of `scripts.base_eval`
    BASE/eval_bundle, BASE/task_data   data of CORE, and of the chat tasks
    BASE/report                        a section for each stage, then report.md and report.html

BASE is `--base-dir`, else `$MARIN_BASE_DIR`, else `$NANOCHAT_BASE_DIR`, else `~/.cache/marin/gpt2`. Names below it are those
of nanochat, so that its shards and its evaluation bundle are found where they lie.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from marin.errors import ConfigError, DataError
from marin.storage import files

Source = Literal["base", "sft", "rl"]

_VARIABLES = ("MARIN_BASE_DIR", "NANOCHAT_BASE_DIR")
_DEFAULT = "~/.cache/marin/gpt2"
_RUNCPU = "~/.cache/marin/runcpu"  # where runs/runcpu.sh keeps all, unless it is told another place
_CHECKPOINTS = {"base": "base_checkpoints", "sft": "chatsft_checkpoints", "rl": "chatrl_checkpoints"}
_MADE_BY = {"base": "scripts.base_train", "sft": "scripts.chat_sft", "rl": "scripts.chat_rl"}


@dataclasses.dataclass(frozen=True)
class Places:
    """Paths below one base directory, which is local and absolute."""

    base: str

    @staticmethod
    def of(base_dir: str | None = None, environment: Mapping[str, str] = os.environ) -> "Places":
        """The places below the directory that `--base-dir` or the environment names; nothing is created.

        Raises:
            ConfigError: it is blank, or a URL.
        """
        named = [("--base-dir", base_dir)] + [(name, environment.get(name) or None) for name in _VARIABLES]
        source, value = next(((name, value) for name, value in named if value is not None), ("the default", _DEFAULT))
        if not value.strip():
            raise ConfigError(f"`{source}` is blank: give a directory, such as {_DEFAULT}")
        if not files.is_local(value):
            raise ConfigError(
                f"`{source}` is {value}: checkpoints are kept on a local disk, so give a directory, such as {_DEFAULT}"
            )
        return Places(os.path.abspath(os.path.expanduser(str(files.local_path(value)))))

    @property
    def tokenizer(self) -> Path:
        return Path(self.base, "tokenizer")

    @property
    def data(self) -> Path:
        return Path(self.base, "base_data_climbmix")

    @property
    def eval_bundle(self) -> Path:
        return Path(self.base, "eval_bundle")

    @property
    def task_data(self) -> Path:
        return Path(self.base, "task_data")

    @property
    def report(self) -> Path:
        return Path(self.base, "report")

    @property
    def base_eval(self) -> Path:
        return Path(self.base, "base_eval")

    def checkpoints(self, source: Source, tag: str) -> Path:
        """The run directory of a tag.

        Raises:
            ConfigError: the source is unknown, or the tag cannot be the name of one directory.
        """
        check_name("--model-tag", tag)
        return Path(self.base, _CHECKPOINTS[_checked(source)], tag)

    def relative(self, path: Path) -> str:
        """A path below the base as steps name it, with slashes."""
        return path.relative_to(self.base).as_posix()

    def runs(self, source: Source) -> list[Path]:
        """The runs with a checkpoint, by name."""
        root = Path(self.base, _CHECKPOINTS[_checked(source)])
        return [path for path in sorted(root.glob("*")) if not path.name.startswith(".") and _has_checkpoint(path)]

    def find_run(self, source: Source, tag: str | None = None) -> Path:
        """The run of a tag; without one, of the deepest `dN`, or else of the newest.

        Raises:
            ConfigError: the source is unknown, or the tag is no name.
            DataError: there is no such run with a checkpoint; the message names the command that makes one.
        """
        root, runs = Path(self.base, _CHECKPOINTS[_checked(source)]), self.runs(source)
        if tag is None and runs:
            return max(runs, key=lambda run: (_depth(run.name), (run / "metrics.jsonl").stat().st_mtime))
        wanted = root if tag is None else self.checkpoints(source, tag)
        if wanted in runs:
            return wanted
        found = f"there are {', '.join(run.name for run in runs)}" if runs else "there is none yet"
        begun = [wanted] if tag is not None else sorted(root.glob("[!.]*"))
        for path in begun:
            missing = _missing_of(path) if path.is_dir() else []
            found += f"; {path.name} has no {' and no '.join(missing)}" if missing else ""
        command = f"python -m {_MADE_BY[source]}" + (f" --model-tag {tag}" if tag else "")
        small = Places.of(_RUNCPU)
        elsewhere = f", or look with `--base-dir {_RUNCPU}`" if self.base != small.base and small.runs(source) else ""
        raise DataError(f"{wanted} has no run with a checkpoint ({found}): make one with `{command}`{elsewhere}")


def check_name(flag: str, name: str) -> None:
    """Raises:
    ConfigError: the name cannot be that of one file or directory.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]*", name):
        raise ConfigError(
            f"`{flag}` is {name!r}: use letters, digits and any of _ . = + -, beginning with a letter, as in d12_long"
        )


def _checked(source: Source) -> Source:
    if source not in get_args(Source):
        raise ConfigError(f"the source of a model is {source!r}: use one of {', '.join(get_args(Source))}")
    return source


def _has_checkpoint(run: Path) -> bool:
    return not _missing_of(run)


def _missing_of(run: Path) -> list[str]:
    """What a run that a model can be opened from has, and this one does not."""
    missing = [name for name in ("run.json", "metrics.jsonl") if not (run / name).is_file()]
    return missing if any(run.glob("checkpoints/step-*")) else [*missing, "checkpoint"]


def _depth(tag: str) -> int:
    """The depth that a tag names; -1 for a tag of another kind, which is chosen by its time alone."""
    named = re.fullmatch(r"d(\d+)", tag)
    return int(named.group(1)) if named else -1
