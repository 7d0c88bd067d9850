"""Installed packages against what the project asks for (pyproject.toml) and what it was tested with (requirements.lock)."""

import dataclasses
import importlib.metadata
import pathlib
import re
import tomllib

from marin.errors import ConfigError

_LOCK = "requirements.lock"
_INSTALL = "uv sync --all-packages"
_NAMED_AT_MOST = 4


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line on packages; `blocking` if the main job cannot run like this."""

    name: str
    detail: str
    fix: str = ""
    blocking: bool = False


def _declared(root: pathlib.Path | None) -> list[str]:
    if root is not None:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return list(project.get("dependencies", []))
    try:
        return importlib.metadata.requires("marin") or []
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError("neither a clone nor an installed package `marin` says what is required") from None


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _locked(root: pathlib.Path) -> dict[str, str]:
    """name -> version for this Python and platform, of a lock in pip's format."""
    from packaging.markers import Marker

    try:
        text = (root / _LOCK).read_text(encoding="utf-8")
    except OSError:
        return {}
    pins = {}
    for name, version, marker in re.findall(r"(?m)^([A-Za-z0-9._-]+)==([^\s;\\]+)(?:\s*;\s*([^\\\n]+))?", text):
        if not marker.strip() or Marker(marker.strip()).evaluate():
            pins[name] = version
    return pins


def _names(items: list[str]) -> str:
    rest = len(items) - _NAMED_AT_MOST
    return ", ".join(items[:_NAMED_AT_MOST]) + (f" and {rest} more" if rest > 0 else "")


def examine(root: pathlib.Path | None) -> list[Finding]:
    """What is missing or too old, and what differs from the lock."""
    try:
        from packaging.requirements import Requirement  # may be missing: that is one of the findings
    except ImportError:
        return [Finding("required", "the package `packaging` is missing, as others may be", _INSTALL, blocking=True)]
    try:
        needed = [Requirement(line) for line in _declared(root)]
    except ConfigError as error:
        return [Finding("required", str(error), "run this inside a clone")]
    needed = [
        requirement
        for requirement in needed
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    versions = {requirement.name: _installed(requirement.name) for requirement in needed}
    wrong = [
        f"{requirement.name}{requirement.specifier} ({versions[requirement.name] or 'missing'})"
        for requirement in needed
        if not requirement.specifier.contains(versions[requirement.name] or "0", prereleases=True)
        or versions[requirement.name] is None
    ]
    if wrong:
        findings = [
            Finding("required", f"{len(wrong)} of {len(needed)} missing or too old: {_names(wrong)}", _INSTALL, True)
        ]
    else:
        shown = [f"{name} {versions[name]}" for name in ("jax", "equinox", "optax", "numpy") if versions.get(name)]
        findings = [Finding("required", f"all {len(needed)} present: {', '.join(shown)}")]
    pins = _locked(root) if root is not None else {}
    present = {name: version for name in pins if (version := _installed(name)) is not None}
    changed = [f"{name} {version} (locked {pins[name]})" for name, version in present.items() if version != pins[name]]
    if changed:
        findings.append(
            Finding("locked", f"{len(changed)} differ from {_LOCK}: {_names(changed)}", f"uv pip install -r {_LOCK}")
        )
    elif pins:
        findings.append(Finding("locked", f"all {len(present)} as in {_LOCK}"))
    return findings
