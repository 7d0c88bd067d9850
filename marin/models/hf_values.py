"""The values of a Hugging Face `config.json`, each read as what its key means.

A file that someone has edited, or that a program wrote otherwise than its format says, is refused by file and key: a value that is
guessed at gives a model that computes something else.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NoReturn

from marin.errors import CheckpointError
from marin.number_checks import is_finite, is_whole


@dataclasses.dataclass(frozen=True)
class HfValues:
    """The keys of a `config.json`, or of an object in it.

    A key without a default must be there. A key that is null is not one that is missing, but for `flag` and `part`.

    Args:
        where: the file, for messages.
        inside: the key of the file that holds these, or "" for the file itself.
    """

    values: Mapping[str, Any]
    where: str
    inside: str = ""

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number that is not negative."""
        value = self._get(key, default)
        if not is_finite(value) or value < 0:
            self.refuse(key, "expected a number of at least 0")
        return float(value)

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._get(key, default)
        if not is_whole(value, least):
            self.refuse(key, f"expected a whole number of at least {least}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            self.refuse(key, "expected a string")
        return value

    def flag(self, key: str) -> bool:
        """True or false; false where the key is missing or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, "expected true or false")
        return bool(value)

    def part(self, key: str) -> "HfValues":
        """The values of an object; none where the key is missing or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            self.refuse(key, "expected an object or null")
        return HfValues(value or {}, self.where, key)

    def refuse(self, key: str, why: str) -> NoReturn:
        raise CheckpointError(f"{self.where} says `{key}`{self._of()} {self.values[key]!r}: {why}")

    def _get(self, key: str, default: Any) -> Any:
        if key not in self.values and default is None:
            raise CheckpointError(f"{self.where} has no `{key}`{self._of()}: it is not whole")
        return self.values.get(key, default)

    def _of(self) -> str:
        return f" of `{self.inside}`" if self.inside else ""
