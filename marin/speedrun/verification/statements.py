"""Signed statements about a submission, as in-toto Statements in DSSE envelopes, signed with SSH keys and checked offline.

A statement names the results file and the logs by their SHA-256 (its subject) and says one of

    claim           this is my submission
    re-evaluation   I scored the checkpoint again: bits per byte of each run
    re-run          I trained it again from the same commit: bits per byte and training time of each of my runs

`ssh-keygen -Y` signs and checks; whose word counts says a file of allowed signers (ssh-keygen(1), ALLOWED SIGNERS), which is that
of the repository and never one that a submission brings. A statement by anyone else is shown and lifts nothing, and so does
one that its claimant signed. See https://github.com/in-toto/attestation and https://github.com/secure-systems-lab/dsse.
"""

import base64
import binascii
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from marin.errors import ConfigError, ResultsError
from marin.speedrun import results, strict_json
from marin.speedrun.results import Author, Number
from marin.speedrun.verification.submission import LOGS, Statement, Submission
from marin.speedrun.verification.texts import skeleton
from marin.tracking.run_record import METRICS_FILE, RUN_FILE

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
NAMESPACE = "marin-speedrun"
Kind = Literal["claim", "re-evaluation", "re-run"]
_PREDICATES: dict[str, Kind] = {
    "urn:marin:speedrun:claim:v1": "claim",
    "urn:marin:speedrun:re-evaluation:v1": "re-evaluation",
    "urn:marin:speedrun:re-run:v1": "re-run",
}
_TIMEOUT = 20.0
_BETWEEN_NAMES = re.compile(r"\s*[,;/&+()]\s*|\s+and\s+", re.IGNORECASE)


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False, populate_by_name=True)


class Measured(_Record):
    """What a signer found for one run of the submission: bits per byte, CORE (v1), or both. `run` counts from 0 in its results file."""

    run: int = Field(ge=0)
    bits_per_byte: Number | None = Field(default=None, gt=0)
    core: Number | None = Field(default=None, ge=-1, le=1)
    evaluation_digest: str | None = None
    training_time: Number | None = None
    seed: int | None = None
    failed_probes: list[str] | None = Field(
        default=None, max_length=16, description="validity probes of the signer's own scoring"
    )
    replaced: list[str] | None = Field(
        default=None,
        max_length=64,
        description="as in the results' `evaluation`; a signer who has read that code leaves it out",
    )
    by_submission: bool | None = Field(
        default=None,
        description="true where the process that ran the submission's code made the figures; a signer who has read that code leaves it out",
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.bits_per_byte is None and self.core is None:
            raise ValueError("neither bits_per_byte nor core is stated")
        return self


class Predicate(_Record):
    """`confirmed` is false where the signer holds the claim for refuted; the figures are held against the claim as well."""

    date: str = ""
    confirmed: bool = True
    commit: str | None = None
    measured: list[Measured] = Field(default_factory=list, max_length=500)


class _Subject(_Record):
    name: str
    digest: dict[str, str]


class _Statement(_Record):
    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[_Subject] = Field(min_length=1, max_length=2_000)
    predicate_type: str = Field(alias="predicateType")
    predicate: Predicate


@dataclasses.dataclass(frozen=True)
class Checked:
    """A statement and what came of checking it.

    Args:
        signer: who signed it; None, with the reason in `problem`, where it does not count.
        signer_names: all that the file of allowed signers calls the key by which it was signed.
    """

    name: str
    kind: Kind | None
    signer: str | None
    problem: str | None
    predicate: Predicate | None
    signer_names: tuple[str, ...] = ()
    # About these logs, and a results file that was changed since: it can refute, and not confirm.
    of_older_results: bool = False


def subjects(submission: Submission) -> dict[str, str]:
    """SHA-256 of what a statement is about, by name."""
    found = {results.FILE_NAME: submission.results_digest}
    for log in submission.logs:
        if log is not None:
            for part, content in ((RUN_FILE, log.run), (METRICS_FILE, log.metrics)):
                found[f"{log.name}/{part}".removeprefix("./")] = hashlib.sha256(content).hexdigest()
    return found


def make_statement(submission: Submission, kind: Kind, predicate: Predicate) -> bytes:
    """The statement's bytes, to be signed; equal inputs give equal bytes."""
    uri = next(uri for uri, name in _PREDICATES.items() if name == kind)
    value = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects(submission).items())
        ],
        "predicateType": uri,
        "predicate": predicate.model_dump(mode="json", exclude_none=True),
    }
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def envelope(statement: bytes, key: str | os.PathLike[str]) -> bytes:
    """The statement in a DSSE envelope, signed with an SSH key: a private key's file, or a public one whose key an agent holds.

    Raises:
        ConfigError: if there is no such key, or it does not sign.
    """
    signature = _sign(_pae(statement), pathlib.Path(key))
    value = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(statement).decode(),
        "signatures": [{"keyid": "", "sig": base64.b64encode(signature).decode()}],
    }
    return (json.dumps(value, indent=2) + "\n").encode()


def check_statements(submission: Submission, allowed_signers: str | os.PathLike[str] | None) -> list[Checked]:
    """Every statement of a submission with what its signature is worth; one by its claimant does not count for more than a claim."""
    found = [_check(statement, submission, allowed_signers) for statement in submission.statements]
    claimants = {name for item in found if item.kind == "claim" for name in item.signer_names}
    authors = {name for run in submission.runs for name in _names_of(run.author)}
    authors |= {name for claimant in claimants for name in _names_of_principal(claimant)}
    return [
        dataclasses.replace(item, signer=None, problem=f"signed by {item.signer}, whose submission it is")
        if item.kind != "claim"
        and any(name in claimants or _is_named(name, author) for name in item.signer_names for author in authors)
        else item
        for item in found
    ]


def _names_of(author: Author) -> list[str]:
    """What an author may be called as a signer.

    His name, each of several names, a name as accounts are made of it (`aexample`), and all that his web address could call him:
    the account of github.com/ada or linkedin.com/in/ada, and a host of his own such as ada.github.io.
    """
    people = [name for name in _BETWEEN_NAMES.split(author.name) if name]
    short = [f"{words[0][0]}{words[-1]}" for words in map(str.split, people) if len(words) > 1]
    host, *path = re.split(r"[/?#]", re.sub(r"^https?://(www\.)?", "", author.url or "", flags=re.IGNORECASE))
    called = [author.name, *people, *short, host.split(".")[0], *(part.lstrip("@~") for part in path)]
    return [name for name in called if skeleton(name)]


def _names_of_principal(principal: str) -> list[str]:
    """A signer's principal, and of an address such as ada+marin@example.org whom it names."""
    account = principal.partition("@")[0]
    return [principal, account, account.partition("+")[0]]


def _is_named(principal: str, author: str) -> bool:
    """Whether a signer's principal, a name or an address such as ada@example.org, is an author's name."""
    return any(_in_latin(name) == _in_latin(author) for name in _names_of_principal(principal))


def _in_latin(name: str) -> str:
    """What a name looks like to who passes over other letters: a word in these, beside his own name, makes nobody another signer."""
    seen = skeleton(name)
    return re.sub("[^a-z0-9]+", "", seen) or seen


def _check(statement: Statement, submission: Submission, allowed: str | os.PathLike[str] | None) -> Checked:
    try:
        message, payload, signature = _open(statement)
        parsed = _Statement.model_validate(strict_json.parse_json(payload, statement.name))
    except ResultsError as error:
        return Checked(statement.name, None, None, str(error).removeprefix(f"{statement.name}: "), None)
    except ValidationError as error:
        return Checked(statement.name, None, None, f"no in-toto statement of ours: {results.explain(error)}", None)
    kind = _PREDICATES.get(parsed.predicate_type)
    if kind is None:
        return Checked(
            statement.name, None, None, f"its predicate {parsed.predicate_type[:80]!r} is not one of ours", None
        )
    named = {subject.name: subject.digest.get("sha256") for subject in parsed.subject}
    found = subjects(submission)
    # Who is refuted could otherwise void it with a blank in the results, or by taking the log away.
    stated = {run.log_digest: number for number, run in enumerate(submission.runs) if run.log_digest is not None}
    older = (
        kind != "claim"
        and named.get(results.FILE_NAME) != found[results.FILE_NAME]
        and not stated.keys().isdisjoint(named.values())
    )
    for name, digest in {} if older else found.items():
        if named.get(name) != digest:
            other = f"it is about another {name}" if name in named else f"it does not name {name}"
            return Checked(statement.name, kind, None, other, parsed.predicate)
    names, problem = _signer_names(message, signature, allowed)
    predicate = _of_same_logs(parsed.predicate, named, stated) if older else parsed.predicate
    return Checked(statement.name, kind, next(iter(names), None), problem, predicate, names, older)


def _of_same_logs(predicate: Predicate, named: Mapping[str, str | None], stated: Mapping[str, int]) -> Predicate:
    """What was measured of older results, by the places that the runs of the same logs have now; other runs are left out.

    Args:
        named: the digests of the files that the statement is about.
        stated: the place of each run by the digest of its log.
    """
    measured = []
    for item in predicate.measured:
        digest = named.get(f"{LOGS}/{item.run}/{METRICS_FILE}") or (named.get(METRICS_FILE) if item.run == 0 else None)
        if digest is not None and digest in stated:
            measured.append(item.model_copy(update={"run": stated[digest]}))
    return predicate.model_copy(update={"measured": measured})


def _open(statement: Statement) -> tuple[bytes, bytes, bytes]:
    """What was signed, the statement in it, and the signature."""
    value = strict_json.parse_json(statement.content, statement.name)
    if not isinstance(value, dict) or "payload" not in value:
        if statement.signature is None:
            raise ResultsError(f"{statement.name}: not signed: there is neither an envelope nor {statement.name}.sig")
        return statement.content, statement.content, statement.signature
    try:
        payload = base64.b64decode(value["payload"], validate=True)
        signature = base64.b64decode(value["signatures"][0]["sig"], validate=True)
    except (KeyError, IndexError, TypeError, ValueError, binascii.Error):
        raise ResultsError(f"{statement.name}: not a DSSE envelope with a payload and a signature") from None
    if value.get("payloadType") != PAYLOAD_TYPE:
        raise ResultsError(f"{statement.name}: its payload is not {PAYLOAD_TYPE}")
    return _pae(payload), payload, signature


def _pae(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding, which is what is signed."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


# --- ssh-keygen ---------------------------------------------------------------------------------------------------


def _sign(message: bytes, key: pathlib.Path) -> bytes:
    if not key.is_file():
        raise ConfigError(f"{key}: no such key: make one with `ssh-keygen -t ed25519 -f {key}`")
    done = _ssh_keygen(["-Y", "sign", "-n", NAMESPACE, "-f", str(key)], message)
    if done.returncode != 0 or not done.stdout:
        step = f"give the file of a private SSH key, or make one with `ssh-keygen -t ed25519 -f {key}.new`"
        if b"passphrase" in done.stderr:
            step = f"unlock it with `ssh-add {key}` and give {key}.pub as the key, or sign at a terminal"
        raise ConfigError(f"{key} does not sign ({_last_line(done)}): {step}")
    return done.stdout


def _signer_names(
    message: bytes, signature: bytes, allowed: str | os.PathLike[str] | None
) -> tuple[tuple[str, ...], str | None]:
    """The principals whose signature it is, one key's, or none and the reason; the first is one whose word counts for this."""
    try:
        with tempfile.TemporaryDirectory(prefix="marin-signature-") as folder:
            place = pathlib.Path(folder, "statement.sig")
            place.write_bytes(signature)
            novalidate = _ssh_keygen(["-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(place)], message)
            if novalidate.returncode != 0:
                return (), "its signature is not of these bytes"
            if allowed is None or not os.path.isfile(allowed):
                return (), "signed, but there is no file of allowed signers to hold the key against"
            principals = _ssh_keygen(["-Y", "find-principals", "-s", str(place), "-f", os.fspath(allowed)], b"")
            names = principals.stdout.decode("utf-8", "replace").splitlines()
            if principals.returncode != 0 or not names:
                # ssh-keygen says: Good "marin-speedrun" signature with ED25519 key SHA256:...
                key = novalidate.stdout.decode("utf-8", "replace").strip().partition(" with ")[2][:120]
                # Of lines that do not count it says: FILE:1: key has expired: ...
                said = [found for line in _lines(principals) if (found := re.match(r".*?:(\d+): (.*)", line))]
                unread = f"; line {said[0][1]} of that file does not count: {said[0][2][:120]}" if said else ""
                return (), f"signed by a key that is not among the allowed signers ({key}){unread}"
            names = list(dict.fromkeys([*names, *_names_of_key(signature, pathlib.Path(allowed).read_bytes())]))
            problem = None
            for name in names:  # one line may give the key other namespaces or another time than the next
                verified = _ssh_keygen(
                    ["-Y", "verify", "-f", os.fspath(allowed), "-I", name, "-n", NAMESPACE, "-s", str(place)], message
                )
                if verified.returncode == 0:
                    return (name, *(other for other in names if other != name)), None
                problem = problem or f"the signature of {name} does not verify: {_last_line(verified)}"
            return (), problem
    except (ConfigError, OSError) as error:
        return (), str(error)


def _names_of_key(signature: bytes, allowed: bytes) -> list[str]:
    """The principals of every line that has the signature's key: `find-principals` ends at the first one.

    Also of lines that give it another purpose or time: whose key it is stays true.
    """
    armored = re.sub(rb"-----[A-Z ]+-----|\s", b"", signature)
    try:
        blob = base64.b64decode(armored)
    except binascii.Error:
        return []
    # PROTOCOL.sshsig: the bytes SSHSIG, a version of 4 bytes, and the public key after its length of 4.
    key = base64.b64encode(blob[14 : 14 + int.from_bytes(blob[10:14], "big")])
    found: list[str] = []
    for line in allowed.splitlines():
        named = re.match(rb'\s*(?:"([^"]*)"|([^\s"#]\S*))\s', line)
        if named and key in line.split():
            found += (named[1] or named[2]).decode("utf-8", "replace").split(",")
    return [name for name in found if name]


def _ssh_keygen(arguments: list[str], message: bytes) -> "subprocess.CompletedProcess[bytes]":
    program = shutil.which("ssh-keygen")
    if program is None:
        raise ConfigError("ssh-keygen is not installed: install OpenSSH 8.9 or later to sign and to check signatures")
    try:
        return subprocess.run([program, *arguments], input=message, capture_output=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"ssh-keygen did not answer within {_TIMEOUT:g} s: does the key need a passphrase?") from None


def _lines(done: "subprocess.CompletedProcess[bytes]") -> list[str]:
    return done.stderr.decode("utf-8", "replace").strip().splitlines()


def _last_line(done: "subprocess.CompletedProcess[bytes]") -> str:
    lines = _lines(done)
    return lines[-1][:200] if lines else f"ssh-keygen ended with status {done.returncode}"
