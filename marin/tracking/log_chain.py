"""A hash chain over a run's log, which binds each line to `run.json` and to every line before it.

Before the first line the head is the SHA-256 of `run.json`'s own SHA-256 under a fixed prefix; after a line it is the SHA-256
of the head before it and the line's bytes, newline included. Each line carries, as `chain`, the first 32 hex digits of
the head before it, so that a line that was changed, dropped, added or moved is found and named; the results file carries
the head after the last line, and one link more over the evaluation, which is made after the log is closed. Whoever changes the log
or the evaluation can make the chain again: it shows accidents and careless edits, and gives a whole log one name. It proves
nothing about how the log came about.
"""

import dataclasses
import hashlib

KEY = "chain"
_DIGITS = 32
_DOMAIN = b"marin log chain 1\n"
EVALUATION_LINK = 1  # `run.json` states it: results of that run carry a link over their evaluation, of this version


class LogChain:
    """The head after the lines that it was given so far."""

    def __init__(self, run_json: bytes) -> None:
        self.head = hashlib.sha256(_DOMAIN + hashlib.sha256(run_json).digest()).hexdigest()

    @property
    def link(self) -> str:
        """What the next line carries."""
        return self.head[:_DIGITS]

    def add(self, line: bytes) -> None:
        """Takes a line as it stands in the file, with its newline."""
        self.head = hashlib.sha256(self.head.encode() + line).hexdigest()


@dataclasses.dataclass(frozen=True)
class Links:
    """What the lines of a log carry, against what they should.

    `first_linked` is the number of the first line with a link, None where no line has one; `broken` that of the first line
    after it whose link is another or missing; both count from 1.
    """

    head: str
    first_linked: int | None
    broken: int | None


def check_links(run_json: bytes, lines: list[bytes], links: list[object]) -> Links:
    """Args:
    lines: the log's lines without their newlines.
    links: what each carries under `KEY`, None where it carries nothing.
    """
    head = LogChain(run_json).head
    first: int | None = None
    broken: int | None = None
    sha256 = hashlib.sha256
    for number, (line, link) in enumerate(zip(lines, links, strict=True), start=1):
        if link is not None and first is None:
            first = number
        if first is not None and broken is None and link != head[:_DIGITS]:
            broken = number
        head = sha256(b"%b%b\n" % (head.encode(), line)).hexdigest()  # `LogChain.add` without its call
    return Links(head, first, broken)


def head_of(run_json: bytes, metrics: bytes) -> str:
    """The head after all whole lines of a log."""
    chain = LogChain(run_json)
    for line in metrics.split(b"\n")[:-1]:
        chain.add(line + b"\n")
    return chain.head


def evaluation_link(log_head: str, set_digest: str | None, evaluation: bytes) -> str:
    """The link after a log's last line, which binds the evaluation of the run to it.

    Args:
        log_head: the head after the last line.
        set_digest: of the evaluation documents, where it is known.
        evaluation: the evaluation's canonical bytes.
    """
    parts = (
        f"marin evaluation link {EVALUATION_LINK}",
        log_head,
        set_digest or "",
        hashlib.sha256(evaluation).hexdigest(),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
