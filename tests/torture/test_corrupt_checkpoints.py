"""Random damage to checkpoint files: every one is detected, and the newest checkpoint that is whole is the one restored.

MARIN_CORRUPTION_SEED repeats a sequence; the seed of each is printed.
"""

import collections
import datetime
import os
import random
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.errors import CheckpointError
from marin.training import checkpoint as checkpoints
from marin.training.checkpoint import Checkpoint
from marin.training.checkpoint_writer import CheckpointWriter

STEPS = (10, 20, 30)
KINDS = ("flip", "cut", "extend", "zero", "swap", "swap across", "remove", "add", "rename", "exchange", "manifests")


def _state(step: int) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(step), 3)
    weights = {f"weight{i}": jax.random.normal(key, (8, 16)) for i, key in enumerate(keys)}
    return weights | {"step": jnp.asarray(step)}


class Tree:
    """Three checkpoints, whose files are known by heart."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.directory, self._chance = directory, chance
        with CheckpointWriter(directory, keep_every=10) as writer:
            for step in STEPS:
                writer.save(_state(step), step)
        self._files = {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
        self._like = jax.tree.map(jnp.zeros_like, _state(0))

    def path(self, step: int) -> Path:
        return Checkpoint.of_step(self.directory, step).path

    def damage(self, kind: str, step: int) -> set[int]:
        """Damages the checkpoint of a step, and returns the steps whose checkpoints are not whole after it."""
        files = [path for path in self._files if path.is_relative_to(self.path(step))]
        file = self._chance.choice([path for path in files if path.read_bytes()])
        content = file.read_bytes()
        other = self._chance.choice([one for one in STEPS if one != step])
        match kind:
            case "flip":
                at = self._chance.randrange(8 * len(content))
                changed = bytearray(content)
                changed[at // 8] ^= 1 << at % 8
                file.write_bytes(changed)
            case "cut":
                file.write_bytes(content[: self._chance.randrange(len(content))])
            case "extend":
                file.write_bytes(content + self._chance.randbytes(self._chance.randint(1, 64)))
            case "zero":
                begin = self._chance.choice([i for i, byte in enumerate(content) if byte])
                file.write_bytes(content[:begin] + bytes(min(512, len(content) - begin)) + content[begin + 512 :])
            case "swap":
                self._swap(file, self._unlike(file, files))
            case "swap across":
                theirs = [path for path in self._files if path.is_relative_to(self.path(other))]
                self._swap(file, self._unlike(file, theirs))
                return {step, other}
            case "remove":
                file.unlink()
            case "add":
                file.with_name(f"{file.name}{self._chance.randrange(10)}").write_bytes(content)
            case "rename":
                self.path(step).rename(self.path(step + 100))
                return {step + 100}
            case "exchange":
                aside = self.directory / "aside"
                self.path(step).rename(aside)
                self.path(other).rename(self.path(step))
                aside.rename(self.path(other))
                return {step, other}
            case "manifests":
                for name in ("manifest.json", "manifest.sha256"):
                    shutil.copyfile(self.path(other) / name, self.path(step) / name)
        return {step}

    def _unlike(self, file: Path, others: list[Path]) -> Path:
        """One of the files with another content."""
        return self._chance.choice([path for path in others if path.read_bytes() != file.read_bytes()])

    def _swap(self, one: Path, other: Path) -> None:
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)

    def repair(self) -> None:
        shutil.rmtree(self.directory)
        for path, content in self._files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def check(self, damaged: set[int], *, restores: bool) -> None:
        for step in damaged:
            with pytest.raises(CheckpointError):
                checkpoints.verify(Checkpoint.of_step(self.directory, step))
        whole = max(step for step in STEPS if step not in damaged and self.path(step).exists())
        found, problems = checkpoints.latest_valid(self.directory)
        assert found == Checkpoint(self.path(whole), whole)
        assert len(problems) == len([step for step in damaged if step > whole])
        if restores:
            restored = checkpoints.restore(found, self._like)
            jax.tree.map(np.testing.assert_array_equal, restored, _state(whole))


def _corrupt(directory: Path, points: int, seed: int, *, restore_every: int) -> None:
    print(f"\nMARIN_CORRUPTION_SEED={seed}")
    chance = random.Random(seed)
    tree = Tree(directory, chance)
    tree.check(set(), restores=True)
    counts: collections.Counter[str] = collections.Counter()
    for point in range(points):
        kind, step = chance.choice(KINDS), chance.choice(STEPS)
        damaged = tree.damage(kind, step)
        try:
            tree.check(damaged, restores=point % restore_every == 0)
        except BaseException:
            print(f"point {point}: {kind} of step {step}")
            raise
        counts[kind] += 1
        tree.repair()
    print(dict(counts))
    assert set(counts) == set(KINDS)


def test_checkpoints_with_200_random_corruptions_are_each_detected_and_the_last_whole_one_restored(
    tmp_path: Path,
) -> None:
    seed = int(os.environ.get("MARIN_CORRUPTION_SEED") or datetime.date.today().toordinal())
    _corrupt(tmp_path / "checkpoints", 200, seed, restore_every=20)


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_checkpoints_with_10000_random_corruptions_are_each_detected_and_the_last_whole_one_restored(
    tmp_path: Path,
) -> None:
    seed = int(os.environ.get("MARIN_CORRUPTION_SEED") or 1)
    _corrupt(tmp_path / "checkpoints", 10_000, seed, restore_every=1)
