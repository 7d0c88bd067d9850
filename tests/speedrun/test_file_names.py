"""Names on the board of the sizes of an idea that lie in one file, as `marin submit` gathers them."""

import pathlib
from typing import Any

from marin.site.leaderboard.differences import find_parents, settings_of
from marin.speedrun.board.entries import submission_of
from marin.speedrun.board.leaderboard import collect
from marin.speedrun.results import Author, RunInfo, dump_results

_SEEDS = (0, 1, 2)


def _run(number: int, size: int | None, *, seed: int = 0, rate: float = 0.01, **changes: Any) -> RunInfo:
    seconds = 100.0 + number
    values: dict[str, Any] = {
        "author": Author(name="Ada Example", affiliation="Independent"), "description": "An idea.",
        "resources": {"accelerator_type": "A100", "gpu_count": 1}, "device_name": "A100", "platform": "gpu", "num_chips": 1,
        "model": {"hidden_dim": size}, "model_size": size, "seed": seed, "train_config": {"learning_rate": rate, "seed": seed},
        "training_time": seconds, "training_hardware_flops": seconds * 312e12, "c4_en_bpb": 1.5 - number / 100,
        "run_completion_timestamp": "2026-01-02 00:00:00 UTC",
    }  # fmt: skip
    return RunInfo(**values | changes)


def _seeds(first: int, size: int | None, **changes: Any) -> list[RunInfo]:
    return [_run(first + seed, size, seed=seed, **changes) for seed in _SEEDS]


def _entries(root: pathlib.Path, *runs: RunInfo) -> dict[str, tuple[str, list[int | None]]]:
    """The key and the seeds of each entry by its name, which is the same on all of its tracks."""
    place = root / "idea" / "speedrun_results.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(dump_results(list(runs)))
    found: dict[str, tuple[str, list[int | None]]] = {}
    for board in collect([root]).tracks:
        names = [entry.name for entry in board.entries]
        assert len(set(names)) == len(names)
        found |= {entry.name: (entry.key, [row.seed for row in entry.rows]) for entry in board.entries}
    return found


def _names(root: pathlib.Path, *runs: RunInfo) -> dict[str, list[int | None]]:
    return {name: seeds for name, (_, seeds) in _entries(root, *runs).items()}


def test_sizes_of_one_file_with_several_seeds_each_are_called_by_their_size(tmp_path: pathlib.Path) -> None:
    runs = [*_seeds(0, 8_100_000), *_seeds(3, 130_400_000), _run(6, 1_432_000_000)]
    found = _names(tmp_path, *runs)
    assert found == {"idea/8.1M": [0, 1, 2], "idea/130M": [0, 1, 2], "idea/1.43B": [0]}
    assert {submission_of(name) for name in found} == {"idea"}


def test_an_entry_has_one_name_on_all_tracks_also_where_the_other_sizes_are_on_none_of_them(
    tmp_path: pathlib.Path,
) -> None:
    node = {"resources": {"accelerator_type": "H100", "gpu_count": 8}, "device_name": "H100", "num_chips": 8}
    found = _names(tmp_path, *_seeds(0, 8_100_000), *_seeds(3, 130_000_000, **node))
    assert found == {"idea/8.1M": [0, 1, 2], "idea/130M": [0, 1, 2]}


def test_models_of_one_size_or_of_none_are_told_apart_by_the_number_of_their_first_run(tmp_path: pathlib.Path) -> None:
    found = _names(tmp_path, *_seeds(0, 8_100_000), *_seeds(3, 8_100_000, rate=0.02), _run(6, 8_100_000, rate=0.03))
    assert found == {"idea#1": [0, 1, 2], "idea#4": [0, 1, 2], "idea#7": [0]}
    more = [*_seeds(0, 8_100_000), *_seeds(3, 8_100_000, rate=0.02), *_seeds(6, 8_101_000), *_seeds(9, None)]
    found = _names(tmp_path, *more)
    assert found == {
        "idea/8.1M#1": [0, 1, 2], "idea/8.1M#4": [0, 1, 2], "idea/8.101M": [0, 1, 2], "idea": [0, 1, 2],
    }  # fmt: skip
    assert {submission_of(name) for name in found} == {"idea"}


def test_a_size_that_joins_a_file_changes_names_and_no_address(tmp_path: pathlib.Path) -> None:
    alone = _entries(tmp_path, *_seeds(0, 8_100_000))
    both = _entries(tmp_path, *_seeds(0, 8_100_000), *_seeds(3, 130_000_000))
    assert set(alone) == {"idea"} and set(both) == {"idea/8.1M", "idea/130M"}
    assert alone["idea"] == both["idea/8.1M"]


def test_a_size_of_a_file_is_found_as_a_parent_by_the_name_of_a_run_too(tmp_path: pathlib.Path) -> None:
    _names(tmp_path, *_seeds(0, 8_100_000), _run(3, 130_400_000))
    later = {"run_completion_timestamp": "2026-02-02 00:00:00 UTC"}
    for child, parent in (("by_run", "idea#4"), ("by_file", "idea"), ("by_name", "idea/130M")):
        place = tmp_path / child / "speedrun_results.json"
        place.parent.mkdir()
        place.write_bytes(dump_results([_run(1, 8_100_000, parent=parent, **later)]))
    entries = {entry.name: entry for entry in collect([tmp_path]).tracks[0].entries}
    found = find_parents(entries.values(), {entry.key: settings_of(entry) for entry in entries.values()})
    parents = {name: found[entries[name].key] for name in ("by_run", "by_file", "by_name")}
    assert all(parent.is_stated for parent in parents.values())
    assert [parent.entry.name for parent in parents.values()] == ["idea/130M"] * 3
