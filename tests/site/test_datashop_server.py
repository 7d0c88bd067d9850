"""The datashop's page over a real server: whom it turns away, what hostile names do, and runs that outlive it."""

import errno
import io
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from datashop_pages import Client, rows, shop_served
from datashop_runner import HOSTILE, STAGES

from marin.errors import StorageError
from marin.site.datashop import stages, trying
from marin.site.datashop.access import Access
from marin.site.datashop.runs import Run, Runs
from marin.site.datashop.wishes import Wish


@pytest.fixture
def client(tmp_path: pathlib.Path) -> Iterator[Client]:
    with shop_served(tmp_path) as opened:
        yield opened


def _started(client: Client, name: str = "math-docs") -> str:
    """Address of a run that was filled in and started."""
    pool = client.upload("pool.jsonl", rows(30))["id"]
    examples = client.upload("examples.jsonl", rows(25, "wanted"))["id"]
    _, headers, _ = client.post("/runs")
    address = headers["location"]
    client.post(address, action="review", name=name, pool=[pool], positives=[examples], way="examples")
    assert "Start math-docs?" in client.get(f"{address}/review")
    assert client.post(address, action="start")[1]["location"] == address
    return address


def _word(client: Client, address: str) -> str:
    found = re.search(r'class="status"><span class="badge [a-z-]+">([^<]+)<', client.get(f"/live{address}"))
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [({"keep_percent": "007.10"}, ["the best 7.1 % by score"]),
     ({"keep": "threshold", "threshold": "+0.50", "way": "examples"}, ["at least 0.5<"]),
     ({"way": "prompt", "sample_size": "0010", "budget_tokens": "1_000_000"}, ["at most 10 documents", ">1,000,000 tokens<"]),
     ({"way": "prompt", "sample_size": "1500", "price_input": "1", "price_output": "2", "budget_dollars": "01234.5670"},
      ["at most 1,500 documents", ">$1,234.567<"])],
)  # fmt: skip
def test_review_shows_numbers_as_the_run_will_take_them(
    client: Client, typed: dict[str, str], shown: list[str]
) -> None:
    pool = client.upload("pool.jsonl", rows(30))["id"]
    draft = client.post("/runs")[1]["location"]
    fields = {"way": "examples", "positives": [pool], "model": "m", "endpoint": "http://127.0.0.1:1/v1"} | typed
    client.post(draft, action="review", name="n", pool=[pool], **{"prompt": "{example}"} | fields)
    page = client.get(f"{draft}/review")
    assert all(text in page for text in shown)


# --- who is let in ------------------------------------------------------------------------------------------------------


def test_only_who_has_the_key_is_let_in(client: Client) -> None:
    for cookie in ("", "marin_datashop_1=x", client.cookie[:-1], client.cookie.replace("=", "=x"), '\\"=;;'):
        for path in ("/", "/files", "/runs/abcdefabcdef", "/live/runs/abcdefabcdef", "/uploads"):
            status, headers, body = client.ask("GET", path, Cookie=cookie)
            assert status == 401 and b"terminal" in body and "set-cookie" not in headers
    assert client.ask("GET", "/?key=wrong", Cookie="")[0] == 401
    assert client.ask("GET", "/?key=", Cookie="")[0] == 401
    status, headers, _ = client.ask("GET", client.entry.removeprefix(client.url), Cookie="")
    assert (status, headers["location"]) == (303, "/")
    assert client.cookie in headers["set-cookie"]
    assert "HttpOnly" in headers["set-cookie"] and "SameSite=strict" in headers["set-cookie"]
    key = client.store / "datashop_page" / ".key"
    assert key.stat().st_mode & 0o777 == 0o600 and client.shop.access.key not in client.get("/")


def test_key_is_kept_only_where_nobody_else_can_have_laid_it_down(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, path = "k" * 43, tmp_path / ".key"

    def lay(content: str = known, mode: int = 0o600) -> None:
        path.unlink(missing_ok=True)
        path.write_text(content)
        path.chmod(mode)

    lay()
    assert Access(tmp_path, 1).key == known
    for mode in (0o644, 0o660, 0o602):
        lay(mode=mode)
        assert Access(tmp_path, 1).key != known, oct(mode)
        assert path.stat().st_mode & 0o777 == 0o600 and Access(tmp_path, 1).key == path.read_text()
    lay("short")
    assert len(Access(tmp_path, 1).key) == 43
    lay()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert Access(tmp_path, 1).key != known and (tmp_path / "elsewhere").read_text() == known
    lay()
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)  # as if another person had made it
    assert Access(tmp_path, 1).key != known


def test_other_sites_and_forms_without_the_token_change_nothing(client: Client) -> None:
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    good = f"token={client.shop.access.token}".encode()
    tries = [
        (good, kind | {"Host": "evil.example"}, 421),
        (good, kind | {"Origin": "http://evil.example"}, 403),
        (good, kind | {"Origin": "null"}, 403),
        (good, kind | {"Sec-Fetch-Site": "cross-site"}, 403),
        (good, kind | {"Sec-Fetch-Site": "same-site"}, 403),
        (good, {"Content-Type": "text/plain"}, 400),
        (b"token=wrong", kind, 403),
        (b"", kind, 403),
        (b"token=" + b"x" * 1_100_000, kind, 413),
        (good + b"&a" * 6000, kind, 400),
        (b"\xff", kind, 400),
    ]
    for body, headers, status in tries:
        assert client.ask("POST", "/runs", body, **headers)[0] == status, (body[:40], headers)
    assert client.shop.runs.all() == []
    for token in ("", "wrong"):
        status, _, body = client.ask("POST", "/uploads?name=a.txt", b"text", **{"X-Token": token})
        assert status == 403 and "reload" in json.loads(body)["problem"]
    assert client.shop.uploads.all() == []
    assert client.ask("GET", "/runs")[0] == 405 and client.ask("DELETE", "/runs/abcdefabcdef")[0] == 405
    assert client.ask("POST", "/runs", good, **kind, Origin="null", **{"Sec-Fetch-Site": "same-origin"})[0] == 303


def test_every_answer_carries_the_policy(client: Client) -> None:
    for path in ("/", "/files", "/none", "/static/datashop.js", "/runs/abcdefabcdef"):
        headers = client.ask("GET", path)[1]
        assert (
            "default-src 'none'" in headers["content-security-policy"]
            and "unsafe" not in headers["content-security-policy"]
        )
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"


# --- hostile input ------------------------------------------------------------------------------------------------------


def test_hostile_uploads_are_refused_or_shown_as_text(client: Client) -> None:
    for name, content, problem in (
        ("../../../etc/cron.d/x.jsonl", b"no json", "no document"),
        ("x.html", b"<script>", "should end in"),
        ("", b"x", "should end in"),
        ("a.txt", b"", "empty"),
    ):
        assert problem in client.upload(name, content)["problem"]
    kept = client.upload(f"..\\{HOSTILE}.txt", f"{HOSTILE}\0".encode().replace(b"\0", b"") + b"\n\n\xff\xfe\n")
    page = client.get("/files")
    assert "&lt;script&gt;" in page and "<script>document" not in page and "<img" not in page and "\\u202e" in page
    assert "not_utf8 1" in page
    (folder,) = (path for path in (client.store / "datashop_page" / "uploads").iterdir() if path.name != ".incoming")
    assert folder.name == kept["id"] and all(re.fullmatch(r"[A-Za-z0-9.-]+", path.name) for path in folder.iterdir())
    for wrong in ("..", "../runs", "", kept["id"][:-1], kept["id"] + "/x"):
        client.post("/files/remove", id=wrong)
    assert len(client.shop.uploads.all()) == 1
    client.post("/files/remove", id=kept["id"])
    assert client.shop.uploads.all() == []


def test_a_button_of_another_way_and_a_field_that_is_no_text_are_refused(client: Client) -> None:
    file = client.upload("pool.jsonl", rows(25))["id"]
    draft = client.post("/runs")[1]["location"]
    fields = {"pool": [file], "corpus": [file], "positives": [file], "model": "m", "endpoint": "http://127.0.0.1:1/v1"}
    for way in ("corpus", "examples"):
        status, _, body = client.post(draft, action="try", way=way, **fields)
        assert status == 400 and "Only a prompt can be tried" in body.decode(), way
    for text_field in ("%00", "a%00b"):
        status, _, body = client.ask(
            "POST", f"/uploads?name=a.jsonl&text_field={text_field}", b"{}", **{"X-Token": client.shop.access.token}
        )
        assert status == 422 and "is no text" in json.loads(body)["problem"]


def test_a_full_disk_is_said_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full_store(*_: Any, **__: Any) -> Any:
        raise StorageError("x cannot be written: the disk is full: free some space")

    for failing in (full, full_store):
        with monkeypatch.context() as patched:
            patched.setattr(client.shop.uploads, "_store", failing)
            status, _, body = client.ask("POST", "/uploads?name=a.txt", b"x", **{"X-Token": client.shop.access.token})
        assert status == 507 and "free some space" in json.loads(body)["problem"]
    monkeypatch.setattr(client.shop.runs, "create", full)
    status, _, body = client.post("/runs")
    assert status == 507 and "No space left on device" in body.decode() and "free some space" in body.decode()
    assert list((client.shop.uploads.folder / ".incoming").iterdir()) == []


def test_addresses_that_name_nothing_of_the_page_are_not_found(client: Client) -> None:
    address = _started(client)
    client.go(*STAGES)
    client.until(lambda: _word(client, address) == "finished")
    (client.store / "secret.svg").write_text("the secret")
    report = client.store / "datashop" / "math-docs" / "report-00000000"
    (report / "link.svg").symlink_to(client.store / "secret.svg")
    for path in (
        "/runs/..", "/runs/%2e%2e", "/runs/zzzzzzzzzzzz", "/runs/../../secret.svg", f"{address}/report/../../../../secret.svg",
        f"{address}/report/%2e%2e%2fsecret.svg", f"{address}/report/..%2f..%2f..%2fsecret.svg", f"{address}/report/link.svg",
        f"{address}/report/.executor_info", f"{address}/report//etc/passwd", f"{address}/report/pictures", f"{address}/report/none.svg",
        f"{address}/file/wish.json", f"{address}/file/..%2fprocess.json", f"{address}/samples?drawn=best", "/static/../app.py",
        "/static/..%2fapp.py", "/live/runs/..", "/live/runs/abcdefabcdef",
    ):  # fmt: skip
        status, _, body = client.ask("GET", path)
        assert status in (403, 404) and b"the secret" not in body and b"Traceback" not in body, path
    assert client.ask("GET", f"{address}/report/pictures/labels-wide-light.svg")[0] == 200
    assert client.post(address, action="explode")[0] == 400


# --- runs ---------------------------------------------------------------------------------------------------------------


def test_a_run_is_stopped_resumed_and_downloaded(client: Client) -> None:
    address = _started(client)
    client.go("pool")
    client.until(lambda: "25 of 100" in client.get(f"/live{address}"))
    assert "no answers: no connection" in client.get(f"/live{address}")
    page = client.get(f"/live{address}")
    assert _word(client, address) == "at work" and "$0.1000 of $5.00" in page and "the log of labels" in page
    assert client.ask("GET", f"{address}/dataset.zip")[0] == 404
    first = json.loads((client.shop.runs.folder / address[6:] / "process.json").read_text())
    client.post(address, action="resume")  # at work already: nothing is started
    assert json.loads((client.shop.runs.folder / address[6:] / "process.json").read_text()) == first
    assert client.post(address, action="remove")[0] == 400  # nor is it forgotten
    client.post(address, action="stop")
    client.until(lambda: _word(client, address) == "stopped")
    (client.store / "fail-classifier").touch()
    client.go("labels", "classifier")
    client.post(address, action="resume")
    client.until(lambda: _word(client, address) == "a stage failed")
    assert "DataError: the reason" in client.get(f"/live{address}") and "error: 1 of 6" in client.get(f"/live{address}")
    (client.store / "fail-classifier").unlink()
    client.go(*STAGES)
    client.post(address, action="resume")
    client.until(lambda: _word(client, address) == "finished")
    status, headers, body = client.ask("GET", f"{address}/dataset.zip")
    assert status == 200 and headers["content-disposition"] == 'attachment; filename="math-docs.zip"'
    with zipfile.ZipFile(io.BytesIO(body)) as packed:
        assert packed.testzip() is None
        assert packed.namelist() == ["math-docs/README.md", "math-docs/card.json", "math-docs/data/train.parquet"]
        assert packed.read("math-docs/data/train.parquet") == bytes(range(256)) * 2000
    assert f"# card\n{HOSTILE}".encode() in client.ask("GET", f"{address}/file/README.md")[2]
    copy = client.post("/runs", **{"from": address[6:]})[1]["location"]
    assert copy != address and 'value="math-docs"' in client.get(copy)
    client.post(address, action="remove")
    assert client.ask("GET", address)[0] == 404 and (client.store / "datashop" / "math-docs").is_dir()


def test_prompt_that_a_model_wrote_overwrites_nothing_that_happened_meanwhile(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = client.upload("pool.jsonl", rows(25))["id"]
    common = {"way": "corpus", "corpus": [file], "pool": [file], "model": "m", "endpoint": "http://127.0.0.1:1/v1"}
    meanwhile: dict[str, Any] = {}

    def written(settings: Any, folder: str, prefix: str) -> str:
        pathlib.Path(folder).mkdir()
        meanwhile["do"]()
        (pathlib.Path(folder) / "prompt.txt").parent.mkdir(parents=True, exist_ok=True)
        return "Grade: {example}"

    monkeypatch.setattr(trying, "written_prompt", written)

    def write(do: Callable[[str], Any]) -> tuple[Run | None, pathlib.Path]:
        draft = client.post("/runs")[1]["location"]
        meanwhile["do"] = lambda: do(draft)
        assert client.post(draft, action="write", name="early", **common)[0] == 303
        return client.shop.runs.get(draft[6:]), client.shop.runs.folder / draft[6:]

    gone, folder = write(lambda draft: client.post(draft, action="remove"))
    assert gone is None and not folder.exists()

    def start(draft: str) -> None:
        client.post(draft, action="review", name="other", way="examples", pool=[file], positives=[file])
        client.post(draft, action="start")

    started, _ = write(start)
    assert started is not None and (started.is_draft, started.wish.way, started.wish.name) == (
        False,
        "examples",
        "other",
    )

    saved, _ = write(lambda draft: client.post(draft, action="save", name="late", budget_tokens="5000", **common))
    assert saved is not None and (saved.wish.way, saved.wish.prompt) == ("prompt", "Grade: {example}")
    assert (saved.wish.name, saved.wish.budget_tokens, saved.wish.processor_type) == ("late", "5000", "medu")


def test_draft_that_changed_since_it_was_looked_at_is_not_started(tmp_path: pathlib.Path) -> None:
    runs = Runs(tmp_path / "runs", str(tmp_path), (sys.executable, "-c", "pass"))
    looked_at = runs.create(Wish(name="a"))
    runs.update(looked_at.id, lambda wish: Wish(name="b"))
    runs.start(looked_at, {"pretraining_data_path": ("x",)})
    found = runs.get(looked_at.id)
    assert found is not None and found.is_draft and found.wish.name == "b"
    runs.remove(found)
    assert runs.update(found.id, lambda wish: wish) is None
    runs.remove(found), runs.save_trial(found, {"wish": ""})
    assert list(runs.folder.iterdir()) == []


def test_list_of_runs_and_a_stages_files_need_nothing_that_stages_found_or_printed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = _started(client)
    client.go(*STAGES)
    client.until(lambda: _word(client, address) == "finished")

    def unread(*_: Any) -> Any:
        raise AssertionError("read without need")

    for name in ("_tail", "_found", "_last_words", "_reason"):
        monkeypatch.setattr(stages, name, unread)
    home = client.get("/")
    assert "6 of 6 stages" in home and stages.WORDS["finished"] in home
    assert client.ask("GET", f"{address}/report/")[0] == 200 and client.ask("GET", f"{address}/dataset.zip")[0] == 200
    assert client.ask("GET", f"{address}/samples")[0] == 200


def test_file_is_not_removed_while_a_run_reads_it(client: Client) -> None:
    address = _started(client)
    run = client.shop.runs.get(address[6:])
    assert run is not None
    for number in (*run.wish.pool, *run.wish.positives):
        status, _, body = client.post("/files/remove", id=number)
        assert status == 409 and "math-docs is at work with it" in body.decode()
    assert len(client.shop.uploads.all()) == 2
    client.post(address, action="kill")
    client.until(lambda: not client.shop.runs.get(run.id).is_alive)  # type: ignore[union-attr]
    for number in (*run.wish.pool, *run.wish.positives):
        assert client.post("/files/remove", id=number)[0] == 303
    assert client.shop.uploads.all() == []


def test_a_server_that_starts_again_finds_runs_and_what_killed_ones_left(tmp_path: pathlib.Path) -> None:
    with shop_served(tmp_path) as client:
        address = _started(client)
        client.until(lambda: _word(client, address) == "at work")
        with shop_served(tmp_path) as other:  # knows nothing but the folder
            assert other.shop.access.key == client.shop.access.key
            assert _word(other, address) == "at work"
            process = json.loads((other.shop.runs.folder / address[6:] / "process.json").read_text())
            os.kill(process["pid"], signal.SIGKILL)
            client.until(lambda: _word(client, address) != "at work")  # its parent, which ends the dead child
            assert _word(other, address) == "its process ended before the work did"
            other.go(*STAGES)
            other.post(address, action="resume")
            other.until(lambda: _word(other, address) == "finished")
        assert _word(client, address) == "finished"


def test_a_process_that_got_the_number_of_a_dead_one_is_not_taken_for_it(tmp_path: pathlib.Path) -> None:
    runs = Runs(tmp_path / "runs", str(tmp_path), (sys.executable, "-c", "pass"))
    run = runs.create(Wish(name="a"))
    process = tmp_path / "runs" / run.id / "process.json"
    process.write_text(json.dumps({"pid": os.getpid(), "created": 1.0, "started": time.time()}))
    found = runs.get(run.id)
    assert found is not None and not found.is_alive
    runs.stop(found, at_once=True)  # would end this very process
    for damaged in ("", "[]", "{", '{"wish": 1}'):
        (tmp_path / "runs" / run.id / "wish.json").write_text(damaged)
        assert runs.get(run.id) is None or damaged == '{"wish": 1}'
    assert runs.get("../runs") is None


def test_command_prints_the_address_and_refuses_what_it_cannot_show(tmp_path: pathlib.Path) -> None:
    def marin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "marin", "datashop", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)

    refused = {
        "is not on this machine": marin("--prefix", "gs://bucket/x", "--port", "0"),
        "there is no such folder": marin("--data", "nowhere", "--port", "0"),
        "cannot be made (": marin("--prefix", "/dev/null/store", "--port", "0"),
        "is not there: give a file such as": marin("run", "none.py", "--prefix", "store"),
    }
    page = marin("--prefix", str(tmp_path / "store"), "--port", "0")
    assert page.stdout is not None
    lines = [page.stdout.readline(), page.stdout.readline()]
    assert lines[0] == f"outputs below {tmp_path / 'store'}\n"
    assert re.fullmatch(r"open http://127\.0\.0\.1:\d+/\?key=[\w-]{43}  \(Ctrl-C stops\)\n", lines[1])
    port = re.findall(r":(\d+)/", lines[1])[0]
    with socket.create_connection(("127.0.0.1", int(port)), timeout=20) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode())
        assert b"401 Unauthorized" in connection.recv(100)
    page.send_signal(signal.SIGINT)
    out, err = page.communicate(timeout=60)
    assert (page.returncode, out, err) == (0, "stopped\n", "")
    for message, process in refused.items():
        out, err = process.communicate(timeout=60)
        assert process.returncode == 2 and message in err and err.startswith("error: "), (message, err)


def test_samples_are_read_page_by_page(client: Client) -> None:
    address = _started(client)
    client.go(*STAGES)
    client.until(lambda: _word(client, address) == "finished")
    scores: list[Any] = [
        re.findall(r'class="score">([\d.]+)<', client.get(f"{address}/samples?page={n}")) for n in (1, 2, 3, 99, "x")
    ]
    assert scores[0][:2] == ["0.505", "0.515"] and scores[0][10:12] == ["0.49", "0.48"]
    assert [len(page) for page in scores] == [20, 20, 4, 4, 20]
    random = client.get(f"{address}/samples?drawn=random")
    assert len(re.findall(r'class="score"', random)) == 16 and "Page" not in random
