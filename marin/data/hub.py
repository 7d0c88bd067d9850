"""Repositories of the Hugging Face hub, fetched file by file as they are, with errors that say what to do.

The first attempt asks the hub which commit the revision stands for and what files it has, and writes that down in
`.hub_listing.json`; every later attempt goes by it, so a branch that moves meanwhile changes nothing. Each file is then
fetched as `marin.data.fetch` says, and must have the size and the SHA-256 (large files) or the git blob id (others)
that the hub states. Files that are there and agree are not fetched again. `HF_TOKEN` or a stored login is used when there
is one, and goes to the hub only.

Without network, files that somebody has put at the target by hand are taken, with a line that says that nobody has
checked them.
"""

import dataclasses
import fnmatch
from collections.abc import Sequence
from typing import Any, ClassVar

from marin.data.download import fetch_all
from marin.data.fetch import RemoteFile
from marin.errors import ConfigError, DataError, StorageError, first_line
from marin.execution.attempts import usual_path
from marin.execution.step import ExecutorStep, placement, this_output_path
from marin.storage import files

LISTING = ".hub_listing.json"
_REPO_TYPES = {"datasets": "dataset", "models": "model", "spaces": "space"}


def repo_type_of(prefix: str) -> str:
    """The kind of repository that a config field `hf_repo_type_prefix` names.

    Raises:
        ConfigError: it names none.
    """
    if prefix not in _REPO_TYPES:
        raise ConfigError(f"config field `hf_repo_type_prefix` is {prefix!r}: use {', '.join(_REPO_TYPES)}")
    return _REPO_TYPES[prefix]


@dataclasses.dataclass(frozen=True)
class DownloadConfig:
    """A repository of the hub, or some of its files.

    Args:
        hf_dataset_id: such as "allenai/c4".
        revision: a commit, tag or branch; a commit makes the step's output the same forever. None is the newest.
        gcs_output_path: where the files go, on any store.
        wait_for_completion: must be True: a download ends with its step.
        hf_urls_glob: patterns of the paths to fetch, where `*` also stands for `/`; none means all files.
        hf_repo_type_prefix: `datasets`, `models` or `spaces`.
        num_workers: files fetched at a time.
    """

    marin_resumable: ClassVar[bool] = True

    hf_dataset_id: str
    revision: str | None = None
    gcs_output_path: str = this_output_path()
    wait_for_completion: bool = True
    hf_urls_glob: Sequence[str] = ()
    hf_repo_type_prefix: str = "datasets"
    num_workers: int = placement(default=4)

    def __post_init__(self) -> None:
        if not self.wait_for_completion:
            raise ConfigError("config field `wait_for_completion` must be True: a download ends with its step")
        repo_type_of(self.hf_repo_type_prefix)
        if isinstance(self.hf_urls_glob, str):
            raise ConfigError(
                f"config field `hf_urls_glob` is the string {self.hf_urls_glob!r}: give a list of patterns"
            )


def download_hf_step(
    name: str, hf_dataset_id: str, revision: str | None, *, hf_urls_glob: Sequence[str] = ()
) -> ExecutorStep:
    """The step `raw/{name}`, whose output holds the files of a dataset repository as they are."""
    return ExecutorStep(
        name=f"raw/{name}",
        fn=download_hf,
        config=DownloadConfig(hf_dataset_id, revision, hf_urls_glob=list(hf_urls_glob)),
        description=f"files of {hf_dataset_id} on the Hugging Face hub",
    )


def download_hf(config: DownloadConfig) -> None:
    """Fetches the repository, or its files that match.

    Raises:
        DataError: it cannot be fetched; the message says what to fetch by hand and where to put it.
    """
    download_repo_files(
        config.hf_dataset_id,
        config.gcs_output_path,
        repo_type=repo_type_of(config.hf_repo_type_prefix),
        revision=config.revision,
        patterns=config.hf_urls_glob,
        num_workers=config.num_workers,
    )


def download_repo_files(
    repo_id: str,
    target: str,
    *,
    repo_type: str,
    revision: str | None = None,
    patterns: Sequence[str] | None = None,
    num_workers: int = 4,
) -> None:
    """Fetches a repository, or its files that match `patterns`, into the directory `target`, local or not.

    Args:
        repo_type: "dataset", "model" or "space".
        revision: a commit, tag or branch; None is the newest.
    Raises:
        DataError: if it cannot be fetched; the message says what to fetch by hand and where to put it.
    """
    from huggingface_hub import constants, get_token

    asked = {"repo": repo_id, "type": repo_type, "revision": revision, "patterns": list(patterns or ())}
    listing = _noted_listing(target, asked)
    if listing is None:
        listing = _ask_hub(target, asked)
        if listing is None:
            return
        files.write_json(files.join(target, LISTING), listing)
    wanted = [_remote_file(asked, listing["commit"], entry) for entry in listing["files"]]
    if constants.HF_HUB_OFFLINE:
        missing = [file.name for file in wanted if not files.exists(files.join(target, file.name))]
        if missing:
            raise DataError(
                f"{_named(asked)} cannot be fetched (HF_HUB_OFFLINE is set, {len(missing)} files such as {missing[0]} are "
                f"missing); {_by_hand(asked | {'revision': listing['commit']}, target)}"
            )
    token, by_hand = get_token(), _by_hand(asked | {"revision": listing["commit"]}, target)
    headers = {"Authorization": f"Bearer {token}"} if token else None
    try:
        fetch_all(wanted, target, headers=headers, num_workers=num_workers, by_hand=by_hand)
    except DataError as error:
        also = "" if by_hand in str(error) else f"; or {by_hand}"
        raise DataError(f"{_named(asked)}: {error}{also}") from error


def missing_files(target: str) -> list[str]:
    """Files of a download into `target` that has begun and not ended; none where files were put there by hand."""
    path = files.join(target, LISTING)
    listed = files.read_json(path)["files"] if files.exists(path) else []
    return [entry["path"] for entry in listed if not files.exists(files.join(target, entry["path"]))]


def _ask_hub(target: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    """What the hub says of the repository; None where it cannot be asked and files were put at the target by hand."""
    from huggingface_hub import HfApi
    from huggingface_hub import errors as hub_errors
    from huggingface_hub.hf_api import RepoFile

    repo_id, repo_type, where = asked["repo"], asked["type"], _named(asked)
    try:
        api = HfApi()
        commit = api.repo_info(repo_id, repo_type=repo_type, revision=asked["revision"]).sha
        tree = list(api.list_repo_tree(repo_id, recursive=True, revision=commit, repo_type=repo_type))
    except hub_errors.GatedRepoError:
        raise DataError(
            f"{where} is gated: accept its terms on the hub, then set HF_TOKEN or run `hf auth login`"
        ) from None
    except hub_errors.RevisionNotFoundError:
        raise DataError(f"{where}: the hub has no such revision: check the revision") from None
    except hub_errors.RepositoryNotFoundError:
        raise DataError(
            f"{where} is not on the hub or is private: check the name, and set HF_TOKEN or run `hf auth login` if it is private"
        ) from None
    except hub_errors.HFValidationError as error:
        raise DataError(f"{where} is no repository's name ({error}): use one such as `allenai/c4`") from None
    except (hub_errors.OfflineModeIsEnabled, hub_errors.HTTPError, OSError) as error:
        if _is_there_by_hand(target, asked["patterns"]):
            print(
                f"{where} cannot be asked for ({_reason(error)}): the files at {usual_path(target)} are taken as they are, unchecked",
                flush=True,
            )
            return None
        raise DataError(f"{where} cannot be fetched ({_reason(error)}); {_by_hand(asked, target)}") from None
    entries = [
        {"path": entry.path, "size": entry.size}
        | ({"sha256": entry.lfs.sha256} if entry.lfs else {"git_oid": entry.blob_id})
        for entry in tree
        if isinstance(entry, RepoFile) and _matches(entry.path, asked["patterns"])
    ]
    if not entries:
        paths = sorted(entry.path for entry in tree)
        raise DataError(
            f"{where} has no file that matches {', '.join(asked['patterns']) or 'anything'}: it has "
            f"{', '.join(paths[:8]) or 'no files'}{', ...' if len(paths) > 8 else ''}"
        )
    return {"asked": asked, "commit": commit, "files": sorted(entries, key=lambda entry: str(entry["path"]))}


def _noted_listing(target: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    """The listing of an earlier attempt at the same request."""
    path = files.join(target, LISTING)
    try:
        listing = files.read_json(path) if files.exists(path) else None
    except StorageError:
        return None
    return listing if isinstance(listing, dict) and listing.get("asked") == asked else None


def _remote_file(asked: dict[str, Any], commit: str, entry: dict[str, Any]) -> RemoteFile:
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(asked["repo"], entry["path"], repo_type=asked["type"], revision=commit)
    return RemoteFile(url, entry["path"], entry["size"], entry.get("sha256"), entry.get("git_oid"))


def _is_there_by_hand(target: str, patterns: Sequence[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(name, pattern.split("/")[0]) if patterns else not name.startswith(".")
        for name in files.list_dir(target)
        for pattern in patterns or ("*",)
    )


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _named(asked: dict[str, Any]) -> str:
    revision = f", revision {asked['revision']}" if asked["revision"] else ""
    return f"{asked['repo']} ({asked['type']}{revision})"


def _by_hand(asked: dict[str, Any], target: str) -> str:
    chosen = "".join(f" --include '{pattern}'" for pattern in asked["patterns"])
    revision = f" --revision {asked['revision']}" if asked["revision"] else ""
    return (
        f"on a machine with network run `hf download {asked['repo']} --repo-type {asked['type']}{revision}{chosen} "
        f"--local-dir DIR`, copy DIR's content to {usual_path(target)}, and run the same command again"
    )


def _reason(error: BaseException) -> str:
    """The first line of the error that started it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {first_line(error)}" if str(error).strip() else type(error).__name__
