import gzip
import hashlib
import io
import json
import pathlib
import random
import time

import pytest

from marin.data.fetch import RemoteFile, Retries, Transfer
from marin.errors import DataError, StorageError

CONTENT = random.Random(1).randbytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
QUICK = Retries(attempts=4, first_wait=0.001, longest_wait=0.002)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "below" / "some.bin"


def fetch(server, target, **known):
    return Transfer(RemoteFile(f"{server.url}/some.bin", "some.bin", **known), target, retries=QUICK).run()


def ranges_asked(server):
    return [headers.get("Range") for _, _, headers in server.asked]


@pytest.mark.parametrize(
    ("faults", "ranges"),
    [
        ([], [None]),
        ([503, 429, None], [None, None, None]),
        ([520, 521, 530, None], [None, None, None, None]),
        ([("drop", 1_000_000)], [None, "bytes=1000000-"]),
        ([("drop", 1_000_000), 500, ("drop", 500_000)], [None, "bytes=1000000-", "bytes=1000000-", "bytes=1500000-"]),
        ([("announce", -1000), None], [None, None]),
        ([("announce", 1000), None], [None, None]),
    ],
    ids=["none", "busy", "gone", "cut", "cut twice", "announces too few", "announces too many"],
)
def test_fetch_with_faults_that_pass_gives_the_file_and_asks_only_for_what_is_missing(server, target, faults, ranges):
    server.files["some.bin"] = CONTENT
    server.faults = list(faults)
    assert fetch(server, target, size=len(CONTENT), sha256=SHA256) == SHA256
    assert target.read_bytes() == CONTENT
    assert ranges_asked(server) == ranges
    assert [path.name for path in target.parent.iterdir()] == ["some.bin"]


def test_fetch_writes_each_line_in_one_piece_as_others_print_beside_it(server, target, monkeypatch):
    server.files["some.bin"], server.ranges = CONTENT, False
    server.faults = [503, ("drop", 1_500_000)]
    pieces = []

    class Terminal(io.StringIO):
        def write(self, text):
            pieces.append(text)
            return len(text)

    monkeypatch.setattr("sys.stdout", Terminal())
    fetch(server, target)
    assert pieces and all(text.endswith("\n") for text in pieces if text)


def test_fetch_without_ranges_starts_again_and_gives_the_file(server, target):
    server.files["some.bin"], server.ranges = CONTENT, False
    server.faults = [("drop", 1_500_000)]
    assert fetch(server, target) == SHA256
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("etags", [True, False])
def test_fetch_of_a_file_that_changes_between_two_parts_gives_one_version(server, target, etags):
    server.files["some.bin"], server.etags = CONTENT, etags
    server.faults = [("drop", 1_500_000), 404]
    with pytest.raises(DataError, match="404"):
        fetch(server, target)
    server.files["some.bin"] = other = CONTENT[::-1]
    assert fetch(server, target) == hashlib.sha256(other).hexdigest()
    assert target.read_bytes() == other


def test_fetch_of_a_file_that_became_shorter_gives_the_short_one(server, target):
    server.files["some.bin"], server.faults = CONTENT, [("drop", 1_500_000), 404]
    with pytest.raises(DataError):
        fetch(server, target)
    server.files["some.bin"] = b"short"
    fetch(server, target)
    assert target.read_bytes() == b"short"


def test_fetch_whose_part_was_damaged_on_the_disk_is_found_by_the_digest_and_fetched_again(server, target):
    server.files["some.bin"], server.faults = CONTENT, [("drop", 1_500_000), 404]
    with pytest.raises(DataError):
        fetch(server, target, sha256=SHA256)
    part = target.with_name(".some.bin.part")
    part.write_bytes(b"x" + part.read_bytes()[1:])
    assert fetch(server, target, sha256=SHA256) == SHA256


def test_fetch_of_other_content_than_the_digest_says_names_both(server, target):
    server.files["some.bin"] = b"something else"
    with pytest.raises(DataError, match=f"expected {SHA256}") as caught:
        fetch(server, target, sha256=SHA256)
    assert hashlib.sha256(b"something else").hexdigest() in str(caught.value)
    assert list(target.parent.iterdir()) == []


def test_fetch_of_another_size_than_stated_is_refused(server, target):
    server.files["some.bin"] = b"12345"
    with pytest.raises(DataError, match=r"announces 5 bytes, expected 6"):
        fetch(server, target, size=6)
    assert list(target.parent.iterdir()) == []


def test_fetch_checks_the_git_blob_id(server, target):
    server.files["some.bin"] = b"what\n"
    known = hashlib.sha1(b"blob 5\0what\n").hexdigest()
    fetch(server, target, size=5, git_oid=known)
    target.write_bytes(b"hwat\n")
    server.files["some.bin"] = b"thaw\n"
    with pytest.raises(DataError, match=known):
        fetch(server, target, size=5, git_oid=known)


def test_fetch_of_a_file_that_is_there_asks_nobody_unless_it_is_another(server, target):
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    target.with_name(".some.bin.part.json").write_text("{}")  # of a process that was killed after the rename
    server.files["some.bin"] = CONTENT
    fetch(server, target, sha256=SHA256)
    assert server.asked == []
    assert [path.name for path in target.parent.iterdir()] == ["some.bin"]
    target.write_bytes(CONTENT[:-1])
    fetch(server, target, sha256=SHA256)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("status", "next_step"),
    [(401, "HF_TOKEN"), (403, "ask its owner"), (404, "check the address"), (501, "check the address")],
)
def test_fetch_that_is_denied_is_not_tried_again(server, target, status, next_step):
    server.faults = [status, None]
    with pytest.raises(DataError, match=next_step):
        fetch(server, target)
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [202, 204])
def test_fetch_of_what_is_not_there_yet_is_tried_again_and_no_file(server, target, status):
    server.files["some.bin"], server.faults = CONTENT, [status, None]
    assert fetch(server, target) == SHA256
    server.faults = [status] * 9
    with pytest.raises(DataError, match=f"HTTP {status}"):
        fetch(server, target.with_name("other.bin"))
    assert not target.with_name("other.bin").exists()


def test_fetch_of_content_that_is_compressed_on_its_way_is_refused_unless_its_name_or_digest_says_so(server, target):
    packed = gzip.compress(b"some text")
    server.files |= {"some.bin": packed, "some.gz": packed}
    server.headers = {"Content-Encoding": "x-gzip"}
    with pytest.raises(
        DataError, match=r"^http://[^ ]*/some\.bin: the server sends it compressed \(x-gzip\).*fetch http.* put it at"
    ):
        fetch(server, target)
    assert not target.exists()
    digest = hashlib.sha256(packed).hexdigest()
    assert fetch(server, target, sha256=digest) == digest
    named = Transfer(RemoteFile(f"{server.url}/some.gz", "some.gz"), target.with_name("some.gz"), retries=QUICK)
    assert named.run() == digest  # as servers send every .gz that lies there


def test_fetch_takes_an_address_as_a_person_pastes_it(server, target):
    server.files["caf%C3%A9%20and%20more.bin"] = CONTENT
    remote = RemoteFile(f"{server.url}/café and%20more.bin?a=1&b=[2]", "some.bin")
    assert Transfer(remote, target, retries=QUICK).run() == SHA256
    assert server.asked[0][1] == "caf%C3%A9%20and%20more.bin"


def test_fetch_that_is_sent_to_no_address_says_so(server, target):
    server.redirects["some.bin"] = "http://[nowhere/some.bin"
    with pytest.raises(DataError, match="no address or leads to one that is none"):
        fetch(server, target)


def test_fetch_waits_as_long_as_the_server_asks_within_the_bound(server, target):
    server.files["some.bin"], server.faults, server.headers = b"x", [503], {"Retry-After": "3600"}
    fetch(server, target)  # bounded by `longest_wait`
    assert len(server.asked) == 2


def test_fetch_waits_by_itself_where_the_server_asks_for_no_wait(server, target):
    server.files["some.bin"], server.faults, server.headers = b"x", [503, 503], {"Retry-After": "0"}
    begun = time.monotonic()
    Transfer(RemoteFile(f"{server.url}/some.bin", "some.bin"), target, retries=Retries(first_wait=0.4)).run()
    assert time.monotonic() - begun > 0.2 + 0.4  # half of each wait is certain


def test_fetch_from_a_server_that_always_fails_says_what_to_fetch_by_hand_and_where_to_put_it(server, target):
    server.faults = [503] * 9
    with pytest.raises(DataError, match="HTTP 503") as caught:
        fetch(server, target, sha256=SHA256)
    assert len(server.asked) == QUICK.attempts
    assert all(part in str(caught.value) for part in (f"{server.url}/some.bin", str(target), SHA256))


def test_fetch_without_a_server_says_what_to_fetch_by_hand(target):
    remote = RemoteFile("http://127.0.0.1:9/some.bin", "some.bin")
    with pytest.raises(DataError, match=f"ConnectionRefused.*put it at {target}"):
        Transfer(remote, target, retries=QUICK).run()


def test_fetch_that_makes_progress_each_time_is_never_given_up(server, target):
    content = random.Random(2).randbytes(9 << 20)
    server.files["some.bin"], server.faults = content, [("drop", 1 << 20)] * 8
    fetch(server, target)
    assert target.read_bytes() == content


def test_fetch_sends_credentials_to_the_first_host_only(server, target):
    server.files["some.bin"] = b"content"
    other = f"http://localhost:{server.url.rpartition(':')[2]}/some.bin"
    server.redirects["first"] = other
    Transfer(RemoteFile(f"{server.url}/first", "x"), target, headers={"Authorization": "Bearer secret"}).run()
    assert [headers.get("Authorization") for _, _, headers in server.asked] == ["Bearer secret", None]


def test_fetch_onto_a_full_disk_is_told_at_once(server, target, monkeypatch):
    server.files["some.bin"] = CONTENT
    target.parent.mkdir()
    target.with_name(".some.bin.part").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="the disk is full"):
        fetch(server, target)
    assert len(server.asked) == 1


def test_fetch_waits_longer_from_try_to_try_within_bounds():
    retries = Retries(attempts=9, first_wait=1.0, longest_wait=10.0)
    for failures in range(1, 9):
        whole = min(10.0, 2.0 ** (failures - 1))
        waits = [retries.wait(failures) for _ in range(200)]
        assert whole / 2 <= min(waits) < max(waits) <= whole


def test_fetch_ignores_a_torn_note_of_what_has_arrived(server, target):
    server.files["some.bin"] = CONTENT
    target.parent.mkdir()
    target.with_name(".some.bin.part").write_bytes(CONTENT[:1000])
    pathlib.Path(target.with_name(".some.bin.part.json")).write_text(json.dumps({"url": server.url})[:-3])
    fetch(server, target)
    assert target.read_bytes() == CONTENT
