"""An annotation that a scripted endpoint answers, and the labels that it must give."""

import json
import pathlib
from typing import Any

from scripted_endpoint import ScriptedEndpoint

from marin.data.documents import Document
from marin.datashop.annotate import AnnotateConfig
from marin.storage import files

PROMPT = "How good is this {page}?\n\n{example}\n\nEnd with Final Score: and 0 to 5."


def document(index: int) -> Document:
    return Document(f"d{index}", f"Text {index} with quality={index % 6} in it. " + "word " * (index % 40), "test")


def config_for(endpoint: ScriptedEndpoint, sample: str, tmp_path: pathlib.Path, **fields: Any) -> AnnotateConfig:
    given = {"model": "grader", "prompt": PROMPT, "concurrency": 8, "timeout": 20.0, "cache": str(tmp_path / "cache")}
    return AnnotateConfig(
        **given | {"sample": sample, "endpoint": endpoint.url, "output_path": str(tmp_path / "labels")} | fields
    )


def rows_of(config: AnnotateConfig) -> list[dict[str, Any]]:
    text = (pathlib.Path(config.output_path) / "labels.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def summary_of(config: AnnotateConfig) -> dict[str, Any]:
    return dict(files.read_json(config.output_path + "/labels.json"))


def check_one_right_label_each(config: AnnotateConfig, num_documents: int = 60) -> None:
    found = [(row["id"], row["label"]) for row in rows_of(config)]
    assert found == [(f"d{i}", float(i % 6)) for i in range(num_documents)]
