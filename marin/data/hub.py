"""Fetching files of a Hugging Face repository, with errors that say what to do.

Interrupted downloads go on at the file where they stopped. `HF_TOKEN` or a stored login is used when there is one.
"""

from collections.abc import Sequence

from marin.errors import ConfigError, DataError
from marin.storage import files


def download_repo_files(
    repo_id: str,
    target: str,
    *,
    repo_type: str,
    revision: str | None = None,
    patterns: Sequence[str] | None = None,
) -> None:
    """Fetches a repository, or its files that match `patterns`, into the directory `target`.

    Args:
        repo_type: "dataset", "model" or "space".
        revision: a commit, tag or branch; None is the newest.
    Raises:
        DataError: if it cannot be fetched; the message says what to fetch by hand and where to put it.
        ConfigError: if `target` is not on a local disk.
    """
    if not files.is_local(target):
        raise ConfigError(
            f"{target}: the hub is downloaded to local disks only, use a local --prefix, or copy the content of {repo_id} "
            "to that path by hand"
        )
    from huggingface_hub import errors as hub_errors
    from huggingface_hub import snapshot_download

    directory = str(files.local_path(target))
    chosen = "".join(f" --include '{pattern}'" for pattern in patterns or ())
    revised = f" --revision {revision}" if revision else ""
    by_hand = (
        f"on a machine with network run `hf download {repo_id} --repo-type {repo_type}{revised}{chosen} --local-dir DIR`, "
        f"copy DIR's content to {directory}, and run the same command again"
    )
    where = f"{repo_id} ({repo_type}{revised.replace(' --', ', ')})"
    try:
        snapshot_download(
            repo_id,
            repo_type=repo_type,
            revision=revision,
            local_dir=directory,
            allow_patterns=list(patterns) if patterns else None,
        )
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
    except (
        hub_errors.HfHubHTTPError,
        hub_errors.LocalEntryNotFoundError,
        hub_errors.OfflineModeIsEnabled,
        hub_errors.HTTPError,
    ) as error:
        raise DataError(
            f"{where} cannot be fetched ({_reason(error)}): run the same command again to go on where it stopped; without"
            f" network, {by_hand}"
        ) from None
    except OSError as error:
        raise DataError(
            f"{where} cannot be stored at {directory} ({error.strerror or error}): free some space or choose another --prefix"
        ) from error


def _reason(error: BaseException) -> str:
    """The first line of the error that started it."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
