"""Folders of safetensors as Hugging Face lays them out: one file, or shards with an index; read lazily, written whole or not at all.

    config.json                         what the model is
    model.safetensors                   or model-00001-of-00003.safetensors ... and model.safetensors.index.json
    tokenizer.json, tokenizer_config.json
    marin.json                          ours: the training step, and the SHA-256 of each file of weights

A folder is written under a hidden name beside its place, flushed to the disk, and renamed. Where `marin.json` is there, what
it says is checked before a weight is read, as safetensors itself notices a file cut short but not a flipped bit. Pickled
weights are never read: unpickling runs what the file says.
"""

import contextlib
import dataclasses
import json
import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marin.errors import CheckpointError, StorageError
from marin.storage import files

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
RECORD_FILE = "marin.json"
MAX_SHARD_BYTES = 5_000_000_000
_FORMATS = ("BF16", "F16", "F32", "F64")


@dataclasses.dataclass(frozen=True)
class Weight:
    """An array to write, fetched when its turn comes, so that no more than one shard is held at once."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], np.ndarray]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


# --- writing ------------------------------------------------------------------------------------------------------


def write_folder(
    folder: Path,
    weights: Sequence[Weight],
    documents: Mapping[str, bytes],
    record: Mapping[str, Any],
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes the weights and the other files, by name, into a folder that is complete or absent.

    Args:
        record: what `marin.json` says beside the digests.
    Raises:
        StorageError: there is something at `folder`, or it cannot be written; what was there is untouched.
    """
    refuse_occupied(folder)
    shards = _shards(weights, max_shard_bytes)
    with files.explained(str(folder), "written"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        hidden = f".exporting-{folder.name}-"
        for name in files.list_dir(str(folder.parent)):
            if name.startswith(hidden):  # of a run that was killed
                files.remove_tree(str(folder.parent / name))
        beside = folder.parent / f"{hidden}{uuid.uuid4().hex[:12]}"
        beside.mkdir()
        try:
            for name, shard in shards.items():
                _write_shard(beside / name, shard)
            if len(shards) > 1:
                index = {weight.name: name for name, shard in shards.items() for weight in shard}
                total = {"total_size": sum(weight.num_bytes for weight in weights)}
                (beside / INDEX_FILE).write_bytes(json_bytes({"metadata": total, "weight_map": index}))
            for name, content in documents.items():
                (beside / name).write_bytes(content)
            digests = {name: files.sha256_file(str(beside / name)) for name in shards}
            (beside / RECORD_FILE).write_bytes(json_bytes({**record, "files": digests}))
            files.sync_tree(str(beside))
            os.rename(beside, folder)
            files.sync_path(folder.parent)
        finally:
            files.remove_tree(str(beside))


def refuse_occupied(folder: Path) -> None:
    """Raises:
    StorageError: there is something at `folder` that an export would replace.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise StorageError(f"{folder} is there already: name another folder, or remove it first")


def _shards(weights: Sequence[Weight], max_bytes: int) -> dict[str, list[Weight]]:
    groups: list[list[Weight]] = [[]]
    size = 0
    for weight in weights:
        if groups[-1] and size + weight.num_bytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(weight)
        size += weight.num_bytes
    if len(groups) == 1:
        return {SINGLE_FILE: groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups, start=1)}


def _write_shard(path: Path, shard: Sequence[Weight]) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    # The writer takes the buffer as it lies: a transposed view would be written in the wrong order.
    arrays = {weight.name: np.ascontiguousarray(weight.read().astype(weight.dtype)) for weight in shard}
    assert all(arrays[weight.name].shape == weight.shape for weight in shard)
    path.touch()
    mode = path.stat().st_mode  # what the umask gives; the writer renames a file over it that only its owner may read
    try:
        save_file(arrays, path, metadata={"format": "pt"})  # transformers reads no file that lacks this
        path.chmod(mode)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def json_bytes(value: Any) -> bytes:
    """A JSON file as people can read it."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


# --- reading ------------------------------------------------------------------------------------------------------


class WeightFolder:
    """The weights of an opened folder by name; nothing is read before it is asked for."""

    def __init__(self, folder: Path, shapes: Mapping[str, tuple[int, ...]], places: Mapping[str, Path]) -> None:
        self.folder = folder
        self.shapes = shapes
        self._places = places

    @staticmethod
    def open(folder: Path, passed_over: Callable[[str], bool] = lambda name: False) -> "WeightFolder":
        """Reads the headers of all files, and checks the digests where the folder has them.

        Args:
            passed_over: says by name which entries are no weights, and may be in any format.
        Raises:
            CheckpointError: a file is missing, cut short or damaged, or the files do not hold what the index says.
        """
        named = _weight_files(folder)
        _check_digests(folder)
        shapes: dict[str, tuple[int, ...]] = {}
        places: dict[str, Path] = {}
        for path, expected in named.items():
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118 (it is no mapping)
                    if passed_over(name):
                        continue
                    header = file.get_slice(name)
                    if header.get_dtype() not in _FORMATS:
                        raise CheckpointError(
                            f"{path} holds `{name}` as {header.get_dtype()}: this engine reads {', '.join(_FORMATS)}, no quantized"
                            " weights; use the model's full-precision checkpoint"
                        )
                    shapes[name], places[name] = tuple(header.get_shape()), path
            for name in expected:
                if places.get(name) != path and not passed_over(name):
                    raise CheckpointError(f"{path} has no `{name}`, which {INDEX_FILE} says it holds: fetch both again")
        return WeightFolder(folder, shapes, places)

    def read(self, name: str) -> np.ndarray:
        """One array, in the format in which it is stored."""
        with _opened(self._places[name]) as file:
            return np.asarray(file.get_tensor(name))


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of the folder.

    Raises:
        CheckpointError: it is missing or something else.
    """
    path = folder / name
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}): give a folder in Hugging Face's layout, with {CONFIG_FILE} and {SINGLE_FILE}"
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}: expected a JSON object")
    return value


def _weight_files(folder: Path) -> dict[Path, list[str]]:
    """The files of weights, and what the index says that each holds (nothing where there is no index)."""
    if (folder / INDEX_FILE).is_file():
        weight_map = read_json(folder, INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{folder / INDEX_FILE} has no `weight_map`: fetch it again")
        named: dict[Path, list[str]] = {}
        for name, file in weight_map.items():
            if not isinstance(file, str) or file != os.path.basename(file):
                raise CheckpointError(
                    f"{folder / INDEX_FILE} says {file!r} for `{name}`: expected a file of the folder"
                )
            named.setdefault(folder / file, []).append(name)
        missing = sorted(path.name for path in named if not path.is_file())
        if missing:
            raise CheckpointError(
                f"{folder} lacks {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
                f" ({len(missing)} of {len(named)} files of weights): put them there, or fetch the folder again"
            )
        return named
    if (folder / SINGLE_FILE).is_file():
        return {folder / SINGLE_FILE: []}
    pickled = sorted(path.name for path in folder.glob("*.bin")) if folder.is_dir() else []
    hint = f"; {pickled[0]} is pickled, which is never read: convert it to safetensors" if pickled else ""
    raise CheckpointError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}{hint}")


def _check_digests(folder: Path) -> None:
    if not (folder / RECORD_FILE).is_file():
        return
    digests = read_json(folder, RECORD_FILE).get("files")
    for name, digest in (digests if isinstance(digests, dict) else {}).items():
        path = folder / os.path.basename(name)
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: restore it, or export the model again")
        if files.sha256_file(str(path)) != digest:
            raise CheckpointError(
                f"{path} was changed or damaged: its SHA-256 is not that of {RECORD_FILE}; export the model again, or remove"
                f" {RECORD_FILE} if the change is meant"
            )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file for reading; what the library says of a bad one becomes a `CheckpointError`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is no whole safetensors file ({error}): it was cut short or damaged; fetch or export it again"
        ) from None
