"""`marin cache`: what is in a token cache, and whether it is whole."""

import argparse
from typing import TYPE_CHECKING

from marin.errors import ConfigError

if TYPE_CHECKING:
    from marin.data.cache import TokenCache

HELP = """\
Look at a token cache in Levanter's layout, made here or elsewhere.

  info     what it holds and how it is stored
  verify   check ledger, files, document ends, ids and digests; exit status 1 if anything is damaged
  head     the first documents, as ids and, with the tokenizer, as text

DIR is the directory with the ledger, or the one above it, such as a tokenize step's output."""

_OF_HEAD = {"documents": 3, "first": 1, "tokens": 64, "tokenizer": None}  # its flags, with their defaults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(**_OF_HEAD)
    parser.add_argument("what", choices=["info", "verify", "head"])
    parser.add_argument("dir", metavar="DIR")
    parser.add_argument(
        "--documents", type=int, metavar="N", help="how many documents head shows; default: %(default)s"
    )
    parser.add_argument(
        "--first", type=int, metavar="N", help="the first document that head shows; default: %(default)s"
    )
    parser.add_argument("--tokens", type=int, metavar="N", help="how much of each it shows; default: %(default)s")
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="a tokenizer.json, or a directory with one: head shows text too"
    )


def run(args: argparse.Namespace) -> int:
    from marin.data.cache import TokenCache

    if args.what != "head":
        for name, default in _OF_HEAD.items():
            if getattr(args, name) != default:
                raise ConfigError(
                    f"--{name} is a flag of `marin cache head`: leave it out of `marin cache {args.what}`"
                )
    if args.what == "verify":
        return _verify(args.dir)
    cache = TokenCache.open(args.dir)
    if args.what == "info":
        _info(cache)
    else:
        _head(cache, args)
    return 0


def _info(cache: "TokenCache") -> None:
    from marin.data.cache.ledger import metadata, recorded

    made_by = metadata(cache.ledger, "preprocessor_metadata").get("tokenizer")
    chunking = cache.data.chunking
    rows = {
        "path": cache.path,
        "documents": f"{cache.num_documents:,}",
        "tokens": f"{len(cache):,} ({len(cache) / cache.num_documents:,.1f} a document)",
        "tokenizer": made_by or "not recorded",
        "vocabulary": f"{cache.vocab_size:,}" if cache.vocab_size is not None else "not recorded",
        "ids": f"{cache.data.store.dtype.name}, {chunking.outer:,} a file, {chunking.inner:,} compressed together",
        "digest": recorded(cache.ledger, "digest") or "not recorded (`marin cache verify` computes it)",
        "made from": recorded(cache.ledger, "documents_digest") or "not recorded",
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


def _head(cache: "TokenCache", args: argparse.Namespace) -> None:
    from marin.data.tokenizer import Tokenizer

    first, num_documents, num_tokens, tokenizer_path = args.first, args.documents, args.tokens, args.tokenizer
    if num_documents < 1 or num_tokens < 1:
        raise ConfigError(f"--documents {num_documents} and --tokens {num_tokens}: use at least 1")
    if not 1 <= first <= cache.num_documents:
        raise ConfigError(f"--first is {first}: {cache.path} has documents 1 to {cache.num_documents:,}")
    tokenizer = Tokenizer.load(tokenizer_path) if tokenizer_path else None
    if tokenizer is not None and cache.tokenizer_digest not in (None, tokenizer.digest):
        raise ConfigError(
            f"{tokenizer_path} is not the tokenizer that made {cache.path}: its digest is {tokenizer.digest}, the cache "
            f"records {cache.tokenizer_digest}"
        )
    offsets = cache.document_offsets
    for index in range(first - 1, min(first - 1 + num_documents, cache.num_documents)):
        start, stop = int(offsets[index]), int(offsets[index + 1])
        ids = cache.tokens[start : min(stop, start + num_tokens)].tolist()
        more = f" ... {stop - start - len(ids):,} more" if stop - start > len(ids) else ""
        print(f"document {index + 1} of {cache.num_documents:,}: {stop - start:,} tokens")
        print(f"  {' '.join(map(str, ids))}{more}")
        if tokenizer is not None:
            print("  " + repr(tokenizer.decode(ids)))
    if tokenizer is None:
        print("(--tokenizer PATH shows the text)")


def _verify(path: str) -> int:
    from marin.data.cache.verify import verify_cache

    problems = 0
    for finding in verify_cache(path):
        problems += not finding.ok
        print(f"{'ok     ' if finding.ok else 'DAMAGED'}  {finding.text}", flush=True)
    if problems:
        print(f"{problems} problem{'s' if problems != 1 else ''}: do not train on {path}")
    return 1 if problems else 0
