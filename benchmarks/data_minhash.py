"""What fuzzy deduplication costs, and how far it agrees with datasketch.

    python -m benchmarks.data_minhash

Prints one JSON line a figure: name, value, unit, n (repetitions), context. Both get the same documents of 2 KB, of which
a third are copies with some words replaced. Ours is the whole stage in one process: reading the document set, sketching,
comparing, and writing what is kept, with flushes to the disk. datasketch is given the texts in memory and makes sketches
with the same number of hashes and the same bands, without comparing the candidates; the repetitions take turns.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from typing import Any

from marin.data.deduplication.fuzzy import FuzzyConfig, dedup_fuzzy_documents
from marin.data.deduplication.minhash import MinHashSettings
from marin.data.documents import Document, read_documents
from marin.data.shards import write_shards
from marin.flags import HelpFormatter

_REPETITIONS = 3
_NUM_DOCUMENTS = 20_000
_NUM_FOR_DATASKETCH = 1_000
_NUM_COMPARED = 4_000
_WORDS = 300
_TARGET = 2_000


def documents_with_copies(count: int, seed: int) -> list[Document]:
    """Documents of about 2 KB with a natural distribution of words; a third are copies with 0 to 5 % of the words new."""
    generator = random.Random(seed)
    vocabulary = [
        "".join(generator.choices("etaoinshrdlucmfwypvbgk", k=generator.randrange(2, 11))) for _ in range(30_000)
    ]
    weights = [1 / (rank + 3) for rank in range(len(vocabulary))]
    drawn = iter(generator.choices(vocabulary, weights, k=count * _WORDS * 2))
    texts: list[list[str]] = []
    for number in range(count):
        if number % 3 == 2:
            text = list(generator.choice(texts[-100:]))
            for _ in range(generator.randrange(_WORDS * 5 // 100)):
                text[generator.randrange(_WORDS)] = next(drawn)
        else:
            text = [next(drawn) for _ in range(_WORDS)]
        texts.append(text)
    generator.shuffle(texts)
    return [Document(f"d{number}", " ".join(text), "made") for number, text in enumerate(texts)]


def seconds_of_ours(source: str, output_path: str) -> tuple[float, float]:
    """Of the clock, and of the processor."""
    start, processor = time.perf_counter(), time.process_time()
    dedup_fuzzy_documents(FuzzyConfig(source, output_path=output_path, num_workers=1))
    return time.perf_counter() - start, time.process_time() - processor


def shingles(text: str, size: int) -> frozenset[str]:
    words = text.split()
    return frozenset(" ".join(words[start : start + size]) for start in range(len(words) - size + 1))


def datasketch_candidates(texts: list[str], settings: MinHashSettings) -> list[tuple[int, int]]:
    """Pairs with a common band."""
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(num_perm=settings.num_hashes, params=(settings.bands, settings.rows))
    pairs = []
    for number, text in enumerate(texts):
        sketch = MinHash(num_perm=settings.num_hashes)
        sketch.update_batch([shingle.encode() for shingle in shingles(text, settings.ngram_words)])
        pairs += [(number, other) for other in index.query(sketch)]
        index.insert(number, sketch)
    return pairs


def agreement(directory: str) -> dict[str, Any]:
    """Of the documents with a partner at the threshold or above, the share that both keep or both drop."""
    settings = MinHashSettings()
    documents = documents_with_copies(_NUM_COMPARED, seed=1)
    sets = [shingles(document.text, settings.ngram_words) for document in documents]
    pairs = [
        (one, other)
        for one, other in datasketch_candidates([document.text for document in documents], settings)
        if len(sets[one] & sets[other]) >= settings.threshold * len(sets[one] | sets[other])
    ]
    group = list(range(len(documents)))
    for one, other in pairs:
        low, high = sorted((group[one], group[other]))
        if low != high:
            group = [low if number == high else number for number in group]
    theirs = {documents[number].id for number, first in enumerate(group) if number == first}
    source = os.path.join(directory, "compared")
    write_shards(source, documents, stage="made", settings={}, shard_bytes=4_000_000)
    seconds_of_ours(source, os.path.join(directory, "compared-kept"))
    ours = {document.id for document in read_documents(os.path.join(directory, "compared-kept"))}
    deciding = {documents[number].id for pair in pairs for number in pair}
    return {
        "agreed": len(deciding - (ours ^ theirs)),
        "decisions": len(deciding),
        "kept": len(ours),
        "of": len(documents),
    }


def measure_minhash() -> list[dict[str, Any]]:
    """The figures: name, value, unit, n and context of each."""
    machine = {"python": platform.python_version(), "cpus": os.cpu_count()}
    ours: list[float] = []
    processor: list[float] = []
    theirs: list[float] = []
    # What the stages print is no figure.
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(sys.stderr):
        documents = documents_with_copies(_NUM_DOCUMENTS, seed=0)
        source = os.path.join(directory, "documents")
        size = write_shards(source, documents, stage="made", settings={}).num_bytes
        texts = [document.text for document in documents[:_NUM_FOR_DATASKETCH]]
        for repetition in range(_REPETITIONS):
            seconds = seconds_of_ours(source, os.path.join(directory, f"kept-{repetition}"))
            ours.append(_NUM_DOCUMENTS / seconds[0])
            processor.append(_NUM_DOCUMENTS / seconds[1])
            start = time.perf_counter()
            datasketch_candidates(texts, MinHashSettings())
            theirs.append(_NUM_FOR_DATASKETCH / (time.perf_counter() - start))
        compared = agreement(directory)
    speed, datasketch = statistics.median(ours), statistics.median(theirs)
    context = {
        "bytes_a_document": round(size / _NUM_DOCUMENTS),
        "datasketch": round(datasketch),
        "per_processor_second": round(statistics.median(processor)),
        **machine,
    }
    return [
        _figure("minhash_documents_per_second_per_core", speed, "1/s", _REPETITIONS, target=_TARGET, **context),
        _figure("minhash_speed_over_datasketch", speed / datasketch, "ratio", _REPETITIONS, **machine),
        _figure(
            "minhash_agreement_with_datasketch",
            compared["agreed"] / compared["decisions"],
            "ratio",
            1,
            target=0.99,
            **compared,
        ),
    ]


def _figure(name: str, value: float, unit: str, n: int, **context: Any) -> dict[str, Any]:
    return {"name": name, "value": float(f"{value:.4g}"), "unit": unit, "n": n, "context": context}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter).parse_args()
    for figure in measure_minhash():
        print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
