"""What proves that a checkpoint is whole: a digest of every file, and a digest of the list of digests.

    manifest.json      the step, what the arrays lay on, and the SHA-256 of every other file
    manifest.sha256    the SHA-256 of manifest.json, as `sha256sum -c` reads it

A checkpoint is whole when the manifest is what its own digest says, it is of the step that the directory is named for, and
the directory holds the files that it lists with the content that it lists, and no others. Any flipped bit, cut, swap,
missing or added file breaks one of these.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from marin.errors import CheckpointError
from marin.hardware import num_processors
from marin.storage import files

MANIFEST = "manifest.json"
SEAL = "manifest.sha256"


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the arrays of a checkpoint lay on. Another one adds numbers up in another order.

    Args:
        mesh: devices along each named axis.
        partition: SHA-256 of the names and partition specs of the arrays that are split, None if none is.
    """

    platform: str
    num_devices: int
    num_processes: int
    mesh: dict[str, int]
    partition: str | None

    @staticmethod
    def of(arrays: Mapping[str, jax.Array]) -> "Layout":
        devices: set[jax.Device] = set()
        mesh: dict[str, int] = {}
        specs = []
        for name, array in sorted(arrays.items()):
            devices |= array.sharding.device_set
            if isinstance(array.sharding, NamedSharding):
                mesh = mesh or {str(axis): size for axis, size in array.sharding.mesh.shape.items()}
                if not array.sharding.is_fully_replicated:
                    specs.append([name, _spec(array.sharding.spec)])
        return Layout(
            platform=next(iter(devices)).platform if devices else jax.default_backend(),
            num_devices=len(devices),
            num_processes=len({device.process_index for device in devices}),
            mesh=mesh,
            partition=hashlib.sha256(json.dumps(specs).encode()).hexdigest() if specs else None,
        )

    def __str__(self) -> str:
        text = f"{self.num_devices} {self.platform} device{'s' * (self.num_devices != 1)}"
        axes = [f"{axis} {size}" for axis, size in self.mesh.items() if size > 1]
        processes = [f"{self.num_processes} processes"] if self.num_processes > 1 else []
        split = ["arrays split"] if self.partition else []
        extra = ", ".join(axes + processes + split)
        return f"{text} ({extra})" if extra else text


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`; `files` are SHA-256 by path below the checkpoint."""

    step: int
    saved_on: Layout
    files: dict[str, str]

    @staticmethod
    def parse(content: bytes) -> "Manifest":
        """Raises:
        ValueError, KeyError, TypeError: if it is not what `write` writes.
        """
        data: dict[str, Any] = json.loads(content)
        return Manifest(int(data["step"]), Layout(**data["saved_on"]), dict(data["files"]))

    @staticmethod
    def write(root: Path, step: int, saved_on: Layout) -> "Manifest":
        """Digests all files below `root` and adds the manifest and its seal.

        Raises:
            OSError: if that fails.
        """
        digests = {name: files.sha256_file(str(root / name)) for name in files.files_below(str(root))}
        manifest = Manifest(step, saved_on, digests)
        content = (json.dumps(dataclasses.asdict(manifest), indent=2, sort_keys=True) + "\n").encode()
        (root / MANIFEST).write_bytes(content)
        (root / SEAL).write_bytes(_seal(content))
        return manifest


def read_manifest(root: Path) -> Manifest:
    """The manifest of a checkpoint, without looking at the files that it lists.

    Raises:
        CheckpointError: if it is not there or not what was written.
    """
    try:
        content, seal = (root / MANIFEST).read_bytes(), (root / SEAL).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{error.filename or root} cannot be read ({error.strerror})") from None
    if seal != _seal(content):
        raise CheckpointError(f"{root / MANIFEST} was changed or damaged: its SHA-256 is not the one in {SEAL}")
    try:
        return Manifest.parse(content)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{root / MANIFEST} cannot be read ({error!r})") from None


def seal_of(root: Path) -> str:
    """The SHA-256 of a checkpoint's manifest, which names all that is in it.

    Raises:
        CheckpointError: if it is not there or not what was written.
    """
    read_manifest(root)
    return (root / SEAL).read_text().split()[0]


def verify_files(root: Path, step: int) -> Manifest:
    """Reads everything below `root` and returns the manifest that it agrees with.

    Raises:
        CheckpointError: naming the first file that is missing, unexpected, or not what was written.
    """
    manifest = read_manifest(root)
    if manifest.step != step:
        raise CheckpointError(f"{root} holds step {manifest.step}: the directory was renamed or copied")
    try:
        there = set(files.files_below(str(root))) - {MANIFEST, SEAL}
        for name in sorted(manifest.files.keys() - there):
            raise CheckpointError(f"{root / name} is missing")
        for name in sorted(there - manifest.files.keys()):
            raise CheckpointError(f"{root / name} is not in {MANIFEST}: it was added later")
        with concurrent.futures.ThreadPoolExecutor(min(8, num_processors())) as pool:
            digests = pool.map(lambda name: files.sha256_file(str(root / name)), manifest.files)
            for (name, digest), found in zip(manifest.files.items(), digests, strict=True):
                if found != digest:
                    raise CheckpointError(f"{root / name} was changed or damaged: its SHA-256 is not the manifest's")
    except OSError as error:
        raise CheckpointError(str(error)) from None
    return manifest


def _seal(content: bytes) -> bytes:
    return f"{hashlib.sha256(content).hexdigest()}  {MANIFEST}\n".encode()


def _spec(spec: PartitionSpec) -> list[Any]:
    """The spec as JSON, without the trailing dimensions that are not split."""
    axes = [list(axis) if isinstance(axis, tuple) else axis for axis in spec]
    while axes and axes[-1] is None:
        axes.pop()
    return axes
