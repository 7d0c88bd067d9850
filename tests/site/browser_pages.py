"""Pages of the data browser as a person reads them, and addresses in the prefix that the tests make."""

import html
import re
from typing import Any

CORPUS, TOKENIZER = "/files/0/corpora/docs-11111111", "/files/0/tokenizers/bpe-22222222"
CACHE, RUN = "/files/0/tokenized/docs-33333333", "checkpoints/run-44444444"


def words_of(page: str) -> str:
    """The text of a page as a person reads it."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.replace("<wbr>", ""))).split())


def links_of(page: str) -> list[str]:
    return [html.unescape(address) for address in re.findall(r'href="([^"]+)"', page)]


def open_page(client: Any, path: str) -> str:
    answer = client.get(path)
    assert answer.status == 200, f"{path}: {answer.status} {words_of(answer.text)[:300]}"
    return str(answer.text)
