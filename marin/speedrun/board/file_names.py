"""What the runs of one file are called on the board: `marin submit` gathers several sizes of an idea, with several seeds each, in one.

A file's runs are `NAME#1`, `NAME#2` and so on. Where they are of several models, an entry of them is called after its size, `NAME/8.1M`,
and after the number of its first run where that does not tell it apart, `NAME/8.1M#4`. Only names are made here: what an entry's address
is made of does not change when its file gets another size.
"""

import re
from collections.abc import Iterable, Mapping

from marin.speedrun.board.rows import Row

_NUMBER = re.compile(r"#(\d+)$")
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))

Named = Mapping[tuple[int, str, str], str]


def file_of(run_name: str) -> str:
    """A run's name without its number in a file of several."""
    return _NUMBER.sub("", run_name)


def names_in_files(rows: Iterable[Row]) -> Named:
    """Names for what `place_of` says of a row, in files of several models."""
    files: dict[tuple[int, str], dict[str, list[Row]]] = {}
    for row in rows:
        if row.configuration is not None and "#" in row.run_name and _NUMBER.search(row.run_name):
            files.setdefault((row.searched, row.source), {}).setdefault(row.configuration, []).append(row)
    return {
        (*file, configuration): name
        for file, found in files.items()
        if len(found) > 1
        for configuration, name in _names(found).items()
    }


def place_of(row: Row) -> tuple[int, str, str] | None:
    """Where a row stands and what it is of; None for a row of a list, which does not say."""
    return None if row.configuration is None else (row.searched, row.source, row.configuration)


def _names(found: Mapping[str, list[Row]]) -> dict[str, str]:
    sizes = {configuration: rows[0].model_size for configuration, rows in found.items()}
    shown = _size_texts({size for size in sizes.values() if size is not None})
    parts = {configuration: shown[size] if size and len(shown) > 1 else "" for configuration, size in sizes.items()}
    names = {}
    for configuration, rows in found.items():
        part = parts[configuration]
        name = file_of(rows[0].run_name) + (f"/{part}" if part else "")
        if list(parts.values()).count(part) > 1:
            name += f"#{min(int(_NUMBER.findall(row.run_name)[0]) for row in rows)}"
        names[configuration] = name
    return names


def _size_texts(sizes: set[int]) -> dict[int, str]:
    """Sizes with three digits, or as many more as tell them apart."""
    for digits in (3, 4, 5, 6, 8, 10):
        texts = {size: _size_text(size, digits) for size in sizes}
        if len(set(texts.values())) == len(sizes):
            return texts
    return {size: str(size) for size in sizes}


def _size_text(size: int, digits: int) -> str:
    rounded = float(f"{size:.{digits}g}")
    for unit, letter in _UNITS:
        if rounded >= unit:
            return f"{rounded / unit:.{digits}g}{letter}"
    return str(size)
