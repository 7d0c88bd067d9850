"""The journal of answers: torn, damaged, shared, on another store; and the places for requests."""

import asyncio
import json
import pathlib
import time

import pytest

from marin.data.retries import retry_after
from marin.datashop.answer_cache import AnswerCache
from marin.datashop.question import Answer, Question
from marin.datashop.throttle import Throttle, backoff
from marin.errors import DataError, LeaseHeldError, StorageError

FAMILY = {"model": "m", "purpose": "p"}


def asked(name: str) -> Question:
    return Question(b"{}", name, 100, 50)


def answer(text: str = "Final Score: 3 \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")) -> Answer:
    return Answer(text, False, 10, 5, False)


def fill(cache: AnswerCache, names: str) -> None:
    for name in names:
        cache.sending(asked(name))
        cache.keep(asked(name), answer(f"to {name}"))
    cache.flush()


@pytest.mark.parametrize("where", ["local", "memory"])
def test_answers_are_there_when_the_cache_is_opened_again(where: str, tmp_path: pathlib.Path) -> None:
    folder = str(tmp_path) if where == "local" else f"memory://answers-{tmp_path.name}"
    with AnswerCache(folder, FAMILY) as cache:
        fill(cache, "ab")
        cache.sending(asked("lost"))
        cache.sending(asked("away"))
        cache.turned_away(asked("away"))
        cache.keep(asked("c"), answer())
        cache.flush()
    with AnswerCache(folder, FAMILY) as cache:
        assert cache.get("a") == answer("to a") and cache.get("c") == answer()
        assert cache.get("lost") is None and "away" not in cache
        assert (cache.paid.requests, cache.paid.input, cache.paid.output) == (3, 30, 15)
        assert (cache.perhaps_paid.requests, cache.perhaps_paid.input, cache.perhaps_paid.output) == (1, 100, 50)
        cache.sending(asked("lost"))
        cache.keep(asked("lost"), answer())
        assert cache.perhaps_paid.requests == 1  # the first time may still have been paid for
    with AnswerCache(folder, FAMILY | {"model": "other"}) as cache:
        assert cache.get("a") is None


def test_row_that_a_kill_tore_is_cut_off_wherever_it_was_torn(tmp_path: pathlib.Path) -> None:
    with AnswerCache(str(tmp_path / "whole"), FAMILY) as cache:
        fill(cache, "ab")
        journal = pathlib.Path(cache.folder) / "answers.jsonl"
    whole = journal.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    for size in sorted({0, *range(5, len(whole), 17), *ends, *(end - 1 for end in ends), *(end - 2 for end in ends)}):
        journal.write_bytes(whole[:size])
        with AnswerCache(str(tmp_path / "whole"), FAMILY) as cache:
            rows = sum(end <= size for end in ends)
            assert ("a" in cache, "b" in cache) == (rows >= 2, rows >= 4)
            assert cache.perhaps_paid.requests == rows % 2
            cache.keep(asked("new"), answer())
        with AnswerCache(str(tmp_path / "whole"), FAMILY) as cache:
            assert "new" in cache


@pytest.mark.parametrize(
    "bad", ["{", "[]", '{"answer": 3}', '{"sent": "x", "tokens": [1]}', '{"sent": "x", "tokens": [1, -1]}', "\x00"]
)
def test_row_that_is_damaged_is_named_and_not_passed_over(bad: str, tmp_path: pathlib.Path) -> None:
    with AnswerCache(str(tmp_path), FAMILY) as cache:
        fill(cache, "a")
        journal = pathlib.Path(cache.folder) / "answers.jsonl"
    journal.write_text(bad + "\n" + journal.read_text())
    with pytest.raises(DataError, match=r"answers\.jsonl:1 is no row .*remove the line"):
        AnswerCache(str(tmp_path), FAMILY)
    journal.write_text(journal.read_text().split("\n", 1)[1])
    with AnswerCache(str(tmp_path), FAMILY) as cache:  # the failed opening holds no lease
        assert "a" in cache


def test_answer_with_any_bit_turned_is_damaged(tmp_path: pathlib.Path) -> None:
    with AnswerCache(str(tmp_path), FAMILY) as cache:
        cache.keep(asked("a"), answer())
        journal = pathlib.Path(cache.folder) / "answers.jsonl"
    whole = journal.read_bytes()
    for place in range(0, len(whole) - 1, 5):
        turned = bytearray(whole)
        turned[place] ^= 1 << place % 7
        journal.write_bytes(turned)
        with pytest.raises(DataError, match=r"answers\.jsonl:1 is no row"):
            AnswerCache(str(tmp_path), FAMILY)


def test_answer_without_a_checksum_is_an_older_one_and_counts(tmp_path: pathlib.Path) -> None:
    with AnswerCache(str(tmp_path), FAMILY) as cache:
        journal = pathlib.Path(cache.folder) / "answers.jsonl"
    row = {"answer": "a", "text": "Final Score: 3", "cut_off": False, "tokens": [10, 5], "estimated": False}
    journal.write_text(json.dumps(row) + "\n")
    with AnswerCache(str(tmp_path), FAMILY) as cache:
        assert cache.get("a") == Answer("Final Score: 3", False, 10, 5, False)


def test_full_disk_leaves_whole_rows(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real = os.write
    with AnswerCache(str(tmp_path), FAMILY) as cache:
        fill(cache, "a")

        def full(file: int, data: memoryview) -> int:
            if len(data) > 20:
                return real(file, data[:20])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StorageError, match="the disk is full"):
            cache.keep(asked("b"), answer())
        monkeypatch.undo()
        fill(cache, "c")
    with AnswerCache(str(tmp_path), FAMILY) as cache:
        assert "a" in cache and "b" not in cache and "c" in cache


def test_write_that_failed_on_another_store_is_made_up_for(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"memory://failing-{tmp_path.name}"
    with AnswerCache(folder, FAMILY) as cache:
        fill(cache, "a")
        with monkeypatch.context() as patched:

            def gone(path: str, data: bytes) -> None:
                raise StorageError(f"{path} cannot be written: the store is gone")

            patched.setattr("marin.storage.files.write_bytes", gone)
            with pytest.raises(StorageError, match="the store is gone"):
                fill(cache, "b")
        cache.sending(asked("c"))
        cache.keep(asked("c"), answer())
    with AnswerCache(folder, FAMILY) as cache:
        assert "a" in cache and "b" in cache and "c" in cache and cache.perhaps_paid.requests == 0


def test_one_process_at_a_time_writes(tmp_path: pathlib.Path) -> None:
    with AnswerCache(str(tmp_path), FAMILY) as cache:
        with pytest.raises(LeaseHeldError):
            AnswerCache(str(tmp_path), FAMILY, wait=False)
        assert json.loads((pathlib.Path(cache.folder) / "about.json").read_text()) == FAMILY
    AnswerCache(str(tmp_path), FAMILY, wait=False).close()


# --- places for requests ------------------------------------------------------------------------------------------


def test_places_are_halved_when_the_endpoint_is_busy_and_come_back_with_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        throttle = Throttle(16)
        for _ in range(16):
            await throttle.enter()
        start = time.monotonic()
        with monkeypatch.context() as patch:
            patch.setattr("marin.datashop.throttle.time.monotonic", lambda: start)
            for _ in range(16):  # all that were in flight are turned away together: that is one sign, not sixteen
                throttle.leave()
                throttle.busy(0.05)
        assert throttle.places == 8
        await throttle.enter()
        assert time.monotonic() - start >= 0.05
        throttle.leave()
        for _ in range(8 * 8 * 8):
            throttle.answered()
        assert throttle.places == 16

    asyncio.run(main())


def test_no_more_than_the_places_are_taken_and_all_who_wait_get_one() -> None:
    async def main() -> None:
        throttle, inside, most, done = Throttle(3), 0, 0, 0

        async def work() -> None:
            nonlocal inside, most, done
            await throttle.enter()
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
            done += 1
            throttle.leave()

        await asyncio.gather(*[work() for _ in range(50)])
        assert (most, done, throttle.in_flight) == (3, 50, 0)

    asyncio.run(main())


def test_waits_double_up_to_a_minute_and_spread() -> None:
    for failures, whole in [(1, 0.5), (2, 1.0), (5, 8.0), (100, 60.0)]:
        waits = [backoff(failures) for _ in range(50)]
        assert whole / 2 <= min(waits) < max(waits) <= whole


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("soon", None), ("inf", None), ("nan", None), ("", None)],
)
def test_retry_after_is_read_or_ignored(value: str | None, seconds: float | None) -> None:
    assert retry_after(value) == seconds


def test_retry_after_may_be_a_date() -> None:
    import email.utils

    begun = time.time()
    found = retry_after(email.utils.formatdate(begun + 30, usegmt=True))  # in whole seconds
    assert found is not None and 29 <= found + time.time() - begun and found <= 30
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
