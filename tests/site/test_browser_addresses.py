"""`/experiment?path=...` leads to the page of an experiment, a step or a file, and nowhere else."""

from typing import Any
from urllib.parse import quote

import pytest
from browser_pages import links_of, words_of


def _where(client: Any, path: str) -> tuple[int, str]:
    answer = client.get(f"/experiment?path={quote(path, safe='')}")
    return answer.status, answer.headers.get("location", "")


def test_path_of_a_record_a_step_and_a_file_leads_to_its_page(client: Any, browser_prefix: Any) -> None:
    assert _where(client, "experiments/main-abc123.json") == (303, "/experiment/0/main-abc123.json")
    assert _where(client, browser_prefix.run) == (303, f"/step/0/{browser_prefix.run}")
    assert _where(client, f"{browser_prefix.path}/{browser_prefix.run}/") == (303, f"/step/0/{browser_prefix.run}")
    assert _where(client, browser_prefix.report) == (303, f"/step/0/{browser_prefix.report}")  # it has not run yet
    assert _where(client, f"{browser_prefix.corpus}/train.jsonl.zst")[1].startswith("/files/0/corpora/")
    for path in ("experiments/main-abc123.json", browser_prefix.run):
        assert client.get(_where(client, path)[1]).status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [("", 400), ("experiments/none.json", 404), ("/etc/passwd", 404), ("../../etc/passwd", 403), ("gs://bucket/a", 404), ("a\0b", 403)],
)  # fmt: skip
def test_path_that_is_not_shown_is_refused(client: Any, path: str, status: int) -> None:
    assert _where(client, path)[0] == status


def test_page_of_a_path_that_is_not_there_names_it_and_leads_to_the_nearest_folder(
    client: Any, browser_prefix: Any
) -> None:
    for missing, folder in [
        (f"{browser_prefix.corpus}/none/here.txt", browser_prefix.corpus),
        (f"{browser_prefix.corpus}/train.jsonl.zst/inner", browser_prefix.corpus),
        ("none", ""),
    ]:
        answer = client.get(f"/files/0/{missing}")
        assert answer.status == 404 and missing in words_of(answer.text)
        assert f"/files/0/{folder}".rstrip("/") in links_of(answer.text)
    assert client.get("/files/7/none").status == 404 and client.get("/whatever").status == 404
