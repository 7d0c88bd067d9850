"""What the datashop's n-gram classifier costs: training on 20,000 documents of 2 KB, and scoring end to end.

    python -m benchmarks.datashop            # both figures; a minute or two

Prints one JSON line a figure: name, value, unit, n (repetitions), context. The text is the real one in
`../shared/data/corpora` (`MARIN_SHARED_DATA` names another folder), cut into pieces of 2,000 bytes; without it, the embedded
corpus. Labels say which source a piece is of. Training is from sample and labels on the disk to a finished folder with its
measured quality; scoring is from the pool on the disk to files of scores, in one process, so the rate is that of one core.
Beside it stands the time that scikit-learn's `HashingVectorizer` alone needs for the same features of the same texts.
`loop_seconds` is what ten million additions in a Python loop take on this machine (0.5 s on a usual one of 2025).
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator

from benchmarks.data import SHARED_DATA, corpora, print_figure
from marin.data.documents import Document
from marin.data.shards import DocumentSet, write_shards
from marin.datashop.classifier import train_classifier
from marin.datashop.ngrams import NgramConfig
from marin.datashop.scoring import ScoreConfig, score_documents
from marin.flags import HelpFormatter

NUM_DOCUMENTS = 20_000
_BYTES = 2_000
_REPETITIONS = 3


def pieces() -> Iterator[Document]:
    """`NUM_DOCUMENTS` pieces of the corpora; more are made of the same text at another offset."""
    num = 0
    for offset in range(0, _BYTES, 500):
        for document in corpora() if (SHARED_DATA / "corpora").is_dir() else _embedded():
            data = document.text.encode()[offset:]
            for start in range(0, len(data) - _BYTES, _BYTES):
                text = data[start : start + _BYTES].decode(errors="ignore")
                yield Document(f"{offset}/{document.id}/{start}", text, document.source)
                num += 1
                if num == NUM_DOCUMENTS:
                    return


def _embedded() -> Iterator[Document]:
    from marin.data.corpora.python_docs import extract_python_docs

    for number in range(8):  # small documents: several together reach the size
        group: list[str] = []
        for document in extract_python_docs().train[number:]:
            group.append(document.text)
            if sum(map(len, group)) > 8 * _BYTES:
                yield Document(f"{number}/{document.id}", "\n".join(group), document.source)
                group = []


def prepare(folder: str) -> DocumentSet:
    """The pieces as a document set, and a label for each: whether it is of the most frequent source."""
    documents = list(pieces())
    made = write_shards(f"{folder}/pool", documents, stage="pieces", settings={}, shard_bytes=8_000_000)
    wanted = statistics.mode(document.source for document in documents)
    os.makedirs(f"{folder}/labels")
    rows = ({"id": d.id, "label": float(d.source == wanted), "answer": None, "why_null": None} for d in documents)
    pathlib.Path(folder, "labels", "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {"scale": [0, 1], "num_documents": len(documents), "num_labelled": len(documents), "num_unparsed": 0}
    pathlib.Path(folder, "labels", "labels.json").write_text(json.dumps(summary))
    return made


def training(folder: str) -> None:
    """Sample and labels to a finished classifier."""
    seconds = []
    for number in range(_REPETITIONS):
        began = time.monotonic()
        config = NgramConfig(sample=f"{folder}/pool", labels=f"{folder}/labels", output_path=f"{folder}/c{number}")
        train_classifier(config)
        seconds.append(time.monotonic() - began)
    quality = json.loads(pathlib.Path(folder, "c0", "quality.json").read_text())
    figures = {"all": seconds, "auc": quality["auc"]["value"], "target": "< 60", "load": os.getloadavg()[0]}
    print_figure("datashop_ngram_training", statistics.median(seconds), "s", _REPETITIONS, **figures)


def scoring(folder: str, pool: DocumentSet) -> None:
    """Pool to scores in one process, in turns with the features of scikit-learn."""
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(ngram_range=(1, 2), n_features=1 << 18, alternate_sign=False)
    texts = [document.text for document in pool.shards[0].documents()]
    rates, ratios = [], []
    for number in range(_REPETITIONS):
        began = time.monotonic()
        score_documents(ScoreConfig(pool.path, f"{folder}/c0", f"{folder}/scores{number}", num_workers=1))
        ours = (time.monotonic() - began) / pool.num_documents
        began = time.monotonic()
        vectorizer.transform(texts)
        theirs = (time.monotonic() - began) / len(texts)
        rates.append(1 / ours)
        ratios.append(theirs / ours)
    figures = {"all": rates, "target": ">= 1500", "load": os.getloadavg()[0]}
    print_figure("datashop_ngram_scoring", statistics.median(rates), "documents/s on one core", _REPETITIONS, **figures)
    unit = "x the rate of HashingVectorizer alone"
    print_figure("datashop_ngram_scoring_ratio", statistics.median(ratios), unit, _REPETITIONS, all=ratios)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pool = prepare(folder)
        training(folder)
        scoring(folder, pool)


if __name__ == "__main__":
    main()
