"""What the documents name must exist: files, commands, modules, variables, config fields and keys.

Code is read with `ast`, never imported (but for two small modules without JAX), so that all of this takes a second.
"""

import ast
import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin.cli.main import COMMANDS
from marin.speedrun.results import Core, Digests, Evaluation, RunInfo
from marin.speedrun.tracks import COST_NAMES, TRACKS

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCUMENTS = sorted([README, ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
CODE_FOLDERS = ("marin", "experiments", "scripts")

# Modules that a tutorial's reader makes.
MADE_BY_READERS = {
    "experiments.speedrun.tied_head.main",
    "experiments.speedrun.notes.main",
    "experiments.exp100_tied_head",
}

by_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))

_FENCE = re.compile(r"^( *)```[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def _code_of(text: str) -> list[str]:
    """Lines of code blocks without their comments, and inline code."""
    lines = [line.split(" #")[0] for match in _FENCE.finditer(text) for line in match[2].splitlines()]
    return lines + re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))


def _names(pattern: str, document: Path) -> set[str]:
    return {name for code in _code_of(document.read_text(encoding="utf-8")) for name in re.findall(pattern, code)}


def _tracked_files() -> list[Path]:
    """Files that are in git or would be added to it."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no git repository, so it is not known which files belong to it")
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


# --- links --------------------------------------------------------------------------------------------------------


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@by_document
def test_relative_links_of_a_document_resolve(document: Path) -> None:
    text = _FENCE.sub("", document.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), f"{target} leads nowhere"
        assert path.is_relative_to(ROOT), f"{target} leaves the repository"
        assert not anchor or anchor in _anchors(path), f"{target} names a heading that is not there"


def test_every_document_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [README]
    while waiting:
        here = waiting.pop()
        if here in reached:
            continue
        reached.add(here)
        targets = re.findall(r"\]\(([^)#\s:]+\.md)", here.read_text(encoding="utf-8"))
        waiting += [path for target in targets if (path := (here.parent / target).resolve()).is_file()]
    assert set(DOCUMENTS) <= reached


def test_architecture_page_names_only_what_stands_in_the_files_that_it_links() -> None:
    page = ROOT / "docs" / "architecture.md"
    text = page.read_text(encoding="utf-8")
    links = {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)\s]+\.py)\)", text)}
    assert {ROOT / "marin" / "training" / f"{name}.py" for name in ("loop", "state", "recorder", "checkpoint")} <= links
    there = {word for path in links for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    named = {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"[A-Za-z_]{4,}", code)}
    assert named - there - {"json", "jsonl"} == set()
    assert len(text.splitlines()) < 100  # one page


# --- commands -----------------------------------------------------------------------------------------------------


def _make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@by_document
def test_make_targets_that_a_document_names_exist(document: Path) -> None:
    pattern = r"(?:^|[\s;])make((?: [A-Z_]+=\S+| [a-z][a-z-]*)+)"
    named = {word for words in _names(pattern, document) for word in words.split() if "=" not in word}
    assert named <= _make_targets()


@by_document
def test_marin_commands_that_a_document_names_exist(document: Path) -> None:
    assert _names(r"(?:^\s*|-m )marin ([a-z][a-z-]*)", document) <= COMMANDS.keys()


@by_document
def test_modules_that_a_document_runs_resolve_to_files(document: Path) -> None:
    for module in _names(r"python -m (\S+)", document):
        if "$" in module or "NAME" in module or module in MADE_BY_READERS:
            continue
        if module.split(".")[0] in CODE_FOLDERS:
            path = ROOT.joinpath(*module.split("."))
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
        else:
            assert importlib.util.find_spec(module.split(".")[0]) is not None, module


def test_readme_begins_with_the_two_commands() -> None:
    lines = [line for line in README.read_text(encoding="utf-8").splitlines() if not line.startswith("```")]
    assert [line.split("#")[0].strip() for line in lines[:2]] == ["make hello", "make test"]


def test_readme_names_every_command_of_marin() -> None:
    assert _names(r"^marin ([a-z][a-z-]*)", README) == COMMANDS.keys()


# --- environment variables ----------------------------------------------------------------------------------------


def _source_texts() -> Iterator[str]:
    yield (ROOT / "Makefile").read_text(encoding="utf-8")
    for folder in CODE_FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".sh"):
                yield path.read_text(encoding="utf-8")


@by_document
def test_environment_variables_that_a_document_names_are_read_by_the_code(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    exported = set(re.findall(r"^\s*export ([A-Z][A-Z0-9_]*)=", text, re.MULTILINE)) - {"NAME"}
    in_tables = set(re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`", text)) if document == README else set()
    code = "\n".join(_source_texts())
    missing = [name for name in exported | in_tables if not re.search(rf"\b{name}\b", code)]
    assert missing == []


# --- what a reader must never see ---------------------------------------------------------------------------------

# Written in parts, so that this file does not contain what it looks for.
_MACHINE_PATHS = r"(?<![\w.}])/(?:" + "|".join(["home", "Users", "root", "work", "mnt", "scratch"]) + r")/\w"
_REGISTRIES = "|".join(
    [r"pypi\.(?:org|python)", r"python" + r"hosted\.org", r"--(?:extra-)?index-url[ =]\S", r"arti" + r"factory", r"npm" + r"js\.org"]
)  # fmt: skip


def test_tracked_files_name_no_machine_path_and_no_registry() -> None:
    pattern = re.compile(f"{_MACHINE_PATHS}|{_REGISTRIES}")
    found = []
    for path in _tracked_files():
        data = path.read_bytes()
        if path == Path(__file__) or b"\0" in data:
            continue
        text = data.decode("utf-8", "replace")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


def test_readme_has_no_figure_left_open() -> None:
    assert re.findall(r"@@\w*", README.read_text(encoding="utf-8")) == []


# --- configs and keys ---------------------------------------------------------------------------------------------

CONFIGS = {
    "SpeedrunConfig": "marin/speedrun/config.py",
    "Author": "marin/speedrun/config.py",
    "HardwareConfig": "marin/speedrun/config.py",
    "SimpleTrainConfig": "marin/training/config.py",
    "WatchConfig": "marin/training/config.py",
    "OptimizerConfig": "marin/optim/config.py",
    "AdamConfig": "marin/optim/adamw.py",
    "MuonConfig": "marin/optim/muon.py",
    "LlamaConfig": "marin/models/llama.py",
    "HackableTransformerConfig": "experiments/hackable_transformer_starter_template.py",
    "RotaryConfig": "marin/nn/rotary.py",
    "RmsNormConfig": "marin/nn/norm.py",
}
RESOURCES = ("CpuOnlyConfig", "GpuConfig", "TpuPodConfig")


def _default_of(value: ast.expr | None) -> str:
    """A field's default as source; a call of `field`, `placement` or `added_later` is looked into."""
    if value is None:
        return "required"
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("dataclasses.field", "placement", "added_later"):
        options = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default" in options:
            value = options["default"]
        else:
            factory = options["default_factory"]
            value = factory.body if isinstance(factory, ast.Lambda) else ast.Call(factory, [], [])
    return ast.unparse(value).replace("'", '"')


def _fields(name: str, path: str) -> dict[str, str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    (definition,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return {
        statement.target.id: _default_of(statement.value)
        for statement in definition.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def _section(document: str, heading: str) -> str:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.split(r"^## ", text.split(f"\n## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def _same(documented: str, default: str) -> bool:
    if documented == default:
        return True
    try:
        return bool(ast.literal_eval(documented) == ast.literal_eval(default))
    except ValueError:
        return False


@pytest.mark.parametrize("name", CONFIGS)
def test_config_page_has_every_field_with_its_default_and_no_other(name: str) -> None:
    fields = _fields(name, CONFIGS[name])
    rows = re.findall(
        r"^\| `(\w+)` \| (`[^`]+`|required) \|", _section("docs/reference/configs.md", name), re.MULTILINE
    )
    documented = {field: default.strip("`") for field, default in rows}
    assert documented.keys() == fields.keys()
    wrong = {
        field: (documented[field], fields[field]) for field in fields if not _same(documented[field], fields[field])
    }
    assert wrong == {}


@pytest.mark.parametrize("name", RESOURCES)
def test_config_page_has_every_field_of_the_resources(name: str) -> None:
    section = _section("docs/reference/configs.md", "Resources")
    documented = set(re.findall(rf"^\| `{name}` \| `(\w+)` \|", section, re.MULTILINE))
    assert documented == _fields(name, "marin/resources.py").keys()


@pytest.mark.parametrize(("heading", "record"), [("evaluation", Evaluation), ("core", Core), ("digests", Digests)])
def test_results_page_has_every_key_of_the_inner_records(heading: str, record: type) -> None:
    keys = re.findall(r"^\| `(\w+)` \|", _section("docs/reference/results-schema.md", heading), re.MULTILINE)
    assert set(keys) == record.model_fields.keys()


def test_results_page_has_every_key_of_a_run_and_no_other() -> None:
    text = (ROOT / "docs/reference/results-schema.md").read_text(encoding="utf-8").split("\n## ")[0]
    keys = {field.serialization_alias or name for name, field in RunInfo.model_fields.items()}
    assert set(re.findall(r"^\| `([\w/]+)` \|", text, re.MULTILINE)) == keys


def test_tracks_page_has_a_row_for_every_track_with_its_cost_runs_and_noise() -> None:
    page = (ROOT / "docs/tutorials/tracks.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")
    ]
    found = {row[0].strip("`"): (row[2], row[4], row[5].split()[0].rstrip(",")) for row in rows if len(row) == 6}
    expected = {
        track.key: (COST_NAMES[track.cost], str(track.min_runs), f"{track.noise.sd:g}" if track.noise else "not")
        for track in TRACKS
    }
    lacking = {key: value for key, value in expected.items() if found.get(key, ("",))[:2] != value[:2]}
    assert not lacking, f"the table of docs/tutorials/tracks.md needs (cost, fewest runs, noise): {lacking}"
    wrong = [key for key in expected if expected[key][2] != "not" and float(found[key][2]) != float(expected[key][2])]
    assert not wrong and found.keys() == expected.keys(), (wrong, found.keys())
