"""Stands in for `marin datashop run`: writes in the executor's formats what a run writes, at the pace that a test sets.

    python datashop_runner.py CONFIG --prefix P --executor_info_base_path R

Each stage waits for the file `{P}/go-{stage}` and ends; with `{P}/fail-{stage}` there it fails. A stage that is done is not
done again, and SIGTERM ends the process as it ends the executor. It imports the standard library only, so it starts at once.
"""

import json
import pathlib
import signal
import sys
import time

HOSTILE = "</script><script>document.title='hit'</script><img src=x onerror=\"document.title='hit'\">\u202e{{7*7}}"
STAGES = ("pool", "labels", "classifier", "selection", "card", "report")
_STATUS = ".executor_status"


def _estimate(value):
    return {"value": value, "low": value - 0.01, "high": value + 0.01}


def _samples():
    for number in range(60):
        kept = number % 2 == 0
        yield {
            "id": f"doc-{number}{HOSTILE if number < 4 else ''}", "source": HOSTILE if number < 4 else "web", "kept": kept,
            "score": 0.5 + (number + 1) / 200 * (1 if kept else -1), "drawn": "nearest to the limit" if number < 44 else "at random",
            "characters": 900, "text": f"{HOSTILE}\0 document {number} " + "words " * 150,
        }  # fmt: skip


def _write(folder, stage):
    if stage == "pool":
        counts = {"documents": {"in": 3, "kept": 2}, "bytes": {"in": 30, "kept": 20}, "dropped_by_reason": {HOSTILE: 1}}
        (folder / "manifest.json").write_text(json.dumps(counts))
    elif stage == "labels":
        labels = {
            "num_labelled": 90,
            "num_unparsed": 10,
            "histogram": {"0": 80, "5": 10},
            "cost_dollars": 0.25,
            "lopsided": HOSTILE,
        }
        (folder / "labels.json").write_text(json.dumps(labels))
    elif stage == "classifier":
        quality = {
            "auc": _estimate(0.9),
            "average_precision": _estimate(0.6),
            "prior": 0.1,
            "num_documents": 42,
            "lopsided": None,
        }
        (folder / "quality.json").write_text(json.dumps(quality))
    elif stage == "selection":
        (folder / "selection.json").write_text(
            json.dumps({"num_kept": 10, "num_documents": 100, "kept_fraction": 0.1, "limit": 0.5})
        )
        (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _samples()))
    elif stage == "card":
        last = {"documents_kept": 10, "bytes_kept": 5000}
        (folder / "card.json").write_text(json.dumps({"stages": [last], "cache": {"tokens": 1234}}))
        (folder / "README.md").write_text(f"# card\n{HOSTILE}\n")
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data" / "train.parquet").write_bytes(bytes(range(256)) * 2000)
    elif stage == "report":
        (folder / "pictures").mkdir(exist_ok=True)
        for name in ("labels", "scores"):
            for variant in ("wide-light", "wide-dark", "narrow-light", "narrow-dark"):
                svg = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><rect width="40" height="20"/></svg>'
                (folder / "pictures" / f"{name}-{variant}.svg").write_text(svg)
        (folder / "index.html").write_text(
            f"<!doctype html><html lang=en><title>Report</title><h1>Report</h1>{HOSTILE}"
        )


def main():
    config, prefix, records = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[5])
    name = next(line.split("'")[1] for line in config.read_text().splitlines() if "experiment_name" in line)
    outputs = {stage: prefix / "datashop" / name / f"{stage}-00000000" for stage in STAGES}
    infos = [{"name": f"datashop/{name}/{stage}", "output_path": str(outputs[stage]), "description": f"about {stage} {HOSTILE}"}
             for stage in STAGES]  # fmt: skip
    records.mkdir(parents=True, exist_ok=True)
    (records / "main-000000.json").write_text(json.dumps({"prefix": str(prefix), "steps": infos}))
    print(f"started {HOSTILE}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for stage, info in zip(STAGES, infos, strict=True):
        folder = outputs[stage]
        folder.mkdir(parents=True, exist_ok=True)
        status = folder / _STATUS
        if status.exists() and status.read_text().strip() == "SUCCESS":
            continue
        (folder / ".executor_info").write_text(
            json.dumps({**info, "start_date": "2026-11-22T00:00:00+00:00", "seconds": 1.5})
        )
        (folder / ".executor_log.txt").write_text(f"the log of {stage}\n{HOSTILE}\n")
        if stage == "labels":
            tokens = {"tokens_paid": {"input": 70, "output": 30}, "dollars_paid": 0.1, "budget_dollars": 5.0}
            progress = {"num_done": 25, "num_documents": 100, "num_unparsed": 2, "seconds_left": 8.0, **tokens}
            progress["why_silent"] = f"no connection {HOSTILE}"
            (folder / "progress.json").write_text(json.dumps(progress))
        status.write_text("RUNNING\n")
        while not (prefix / f"go-{stage}").exists():
            (folder / ".executor_status.lock").touch()
            time.sleep(0.02)
        if (prefix / f"fail-{stage}").exists():
            status.write_text("FAILED\n")
            (folder / ".executor_error.txt").write_text(f"Traceback\nmarin.errors.DataError: the reason {HOSTILE}\n")
            sys.exit("error: 1 of 6 steps is not done: " + HOSTILE)
        _write(folder, stage)
        status.write_text("SUCCESS\n")


if __name__ == "__main__":
    main()
