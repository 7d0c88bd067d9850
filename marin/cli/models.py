"""`marin models`: the models below a prefix, with what made them, and their publication on the Hugging Face hub."""

import argparse
import pathlib
from typing import cast

from marin.errors import ConfigError, StorageError

HELP = """\
List the models of finished runs, or publish one.

`marin models list` shows each with its size, what was measured of it, and the commit that it was made from.
`marin models publish DIR OWNER/NAME --run RUN` uploads a folder that `marin export RUN DIR` has written, with a card that says
what made it, to the Hugging Face hub. It needs HF_TOKEN or a stored login; --dry-run shows what would be uploaded."""

_NEEDED = ("config.json", "tokenizer.json", "marin.json")
_CARD = "README.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    shown = actions.add_parser("list", help="the models below a prefix")
    shown.add_argument("--prefix", help="where outputs lie (default: $MARIN_PREFIX, then local_store)")
    publish = actions.add_parser("publish", help="upload an exported folder to the Hugging Face hub")
    publish.add_argument("dir", metavar="DIR", type=pathlib.Path, help="what `marin export` has written")
    publish.add_argument("name", metavar="OWNER/NAME")
    publish.add_argument("--run", type=pathlib.Path, help="the run's output directory, for the card")
    publish.add_argument("--private", action="store_true", help="make the repository private if it is made")
    publish.add_argument("--dry-run", action="store_true", help="write the card, upload nothing")


def run(args: argparse.Namespace) -> int:
    return _list(args.prefix) if args.action == "list" else _publish(args)


def _list(prefix: str | None) -> int:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from marin.site.model_card import catalogue
    from marin.storage import files
    from marin.storage.prefix import resolve_prefix

    place = resolve_prefix(prefix)
    if not files.is_local(place):
        raise ConfigError(
            f"{place} is not on this machine: models are listed from a local prefix, copy or mount it first"
        )
    models = catalogue(place)
    print(f"{len(models)} {'model' if len(models) == 1 else 'models'} under {place}")
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("step", "parameters", "tokens", "measured", "commit"):
        table.add_column(column, overflow="fold")
    for model in models:
        measured = ", ".join(f"{key} {value:.4f}" for key, value in model.figures.items()) or "nothing"
        commit = (model.git_commit or "")[:12] + ("+" if model.git_dirty else "")
        size = "" if model.num_parameters is None else f"{model.num_parameters:,}"
        table.add_row(*map(Text, (model.step, size, f"{model.num_tokens:,}", measured, commit)))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    if models:
        console.print(table)
        print("+ with uncommitted changes. Export one with: marin export RUN DIR")
    return 0


def _publish(args: argparse.Namespace) -> int:
    from marin.site.model_card import card_text, read_model
    from marin.storage import files

    _check_name(args.name)
    there = sorted(path.name for path in args.dir.iterdir()) if args.dir.is_dir() else []
    missing = [name for name in _NEEDED if name not in there]
    weights = [name for name in there if name.endswith(".safetensors")]
    if missing or not weights:
        raise ConfigError(
            f"{args.dir} lacks {', '.join([*missing, *([] if weights else ['*.safetensors'])])}: write it with `marin export RUN DIR`"
        )
    if args.run is not None:
        card = card_text(read_model(args.run), args.name).encode()
        with files.placed_by("DIR"):
            files.write_bytes(str(args.dir / _CARD), card)
    elif _CARD not in there:
        raise ConfigError(f"{args.dir} has no card ({_CARD}): name the run with --run RUN, and it is written")
    names = sorted({*_NEEDED, _CARD, *weights} | {name for name in there if name.endswith((".json", ".jinja"))})
    size = sum((args.dir / name).stat().st_size for name in names)
    print(f"{len(names)} files, {size / 1e6:,.1f} MB: {', '.join(names)}")
    if args.dry_run:
        print(f"would be uploaded to {args.name}; nothing was")
        return 0
    return _upload(args, names)


def _check_name(name: str) -> None:
    """Raises:
    ConfigError: the hub takes no repository of this name.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if name.count("/") != 1:
        raise ConfigError(f"{name!r} is no repository of the hub: give OWNER/NAME")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(f"{name!r} is no repository of the hub: give OWNER/NAME as it has them ({error})") from None


def _upload(args: argparse.Namespace, names: list[str]) -> int:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    # The bases of its own error: OSError, and what the network library raises that this version of the client uses.
    network_errors = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    api = HfApi()
    try:
        api.create_repo(args.name, repo_type="model", private=args.private or None, exist_ok=True)
        done = api.upload_folder(
            repo_id=args.name,
            folder_path=args.dir,
            allow_patterns=names,
            commit_message="Upload a model trained with Marin",
        )
    except network_errors as error:
        first = str(error).strip().partition("\n")[0]
        raise StorageError(
            f"{args.name} was not uploaded ({first}): see that the hub is reached and that HF_TOKEN may write there, and run the same command again"
        ) from None
    print(f"published {args.name}: commit {done.oid}")
    return 0
