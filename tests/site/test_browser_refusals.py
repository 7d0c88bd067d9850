"""The data browser over a real server: what it refuses, what hostile names and contents do, and its command."""

import pathlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from browser_pages import CORPUS, RUN, links_of, open_page, words_of

from marin.site.browser import run_pages
from marin.site.datashop.access import Access

# --- refusals -----------------------------------------------------------------------------------------------------

TRAVERSALS = (
    "/files/0/../secret.txt", "/files/0/a/../../secret.txt", "/files/0/%2e%2e/secret.txt", "/files/0/%2E%2E%2Fsecret.txt",
    "/files/0/..%2fsecret.txt", "/files/0/%252e%252e/secret.txt", "/files/0/%252e%252e%252fsecret.txt",
    "/files/0/..%5csecret.txt", "/files/0/..\\secret.txt", "/files/0//etc/passwd", "/files/0/%2fetc%2fpasswd",
    "/files/0/a%00/../secret.txt", "/files/0/%00", "/files/0/a/%2e/b", "/files/0/%c0%ae%c0%ae/secret.txt",
    "/files/0/link_out", "/files/0/link_out_dir/secret.txt", "/files/0/a/link_up/secret.txt", "/files/0/..;/secret.txt",
    "/files/0/a/link_absolute", "/files/0/" + "a/" * 2000, "/files/0/" + "x" * 300, "/files/1/secret.txt", "/files/-1/x",
    "/files/00000000000000000000000009/x", "/../secret.txt", "/%2e%2e/secret.txt", "/static/../app.py",
    "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/experiment/0/../secret.txt", "/experiment/0/%2e%2e%2fsecret.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def fenced(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder beside a secret, with links that lead out and links that stay inside."""
    base = tmp_path_factory.mktemp("fenced")
    (base / "secret.txt").write_text("the secret\n")
    (base / "root_sibling").mkdir()
    (base / "root_sibling" / "secret.txt").write_text("the secret\n")
    root = base / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "inside.txt").write_text("inside\n")
    (root / "link_out").symlink_to("../secret.txt")
    (root / "link_out_dir").symlink_to("../root_sibling")
    (root / "a" / "link_up").symlink_to("../..")
    (root / "a" / "link_absolute").symlink_to(base / "secret.txt")
    (root / "link_in").symlink_to("a/inside.txt")
    (root / "link_in_dir").symlink_to("a")
    return root


@pytest.mark.parametrize("page", ["files", "raw", "step", "live/step"])
def test_paths_that_lead_out_of_the_folder_are_refused(
    fenced: pathlib.Path, serve: Callable[..., Any], page: str
) -> None:
    with serve(fenced) as client:
        for path in TRAVERSALS:
            asked = path.replace("/files/", f"/{page}/", 1)
            answer = client.get(asked)
            assert answer.status in (403, 404), asked
            assert b"the secret" not in answer.body and b"root:" not in answer.body
            assert "Traceback" not in answer.text and str(fenced.parent) not in answer.text.split("<footer>")[0]


def test_links_that_stay_inside_are_followed_and_others_are_listed_without_a_link(
    fenced: pathlib.Path, serve: Callable[..., Any]
) -> None:
    with serve(fenced) as client:
        assert "inside" in open_page(client, "/files/0/link_in_dir/inside.txt")
        assert client.get("/raw/0/link_in").body == b"inside\n"
        page = open_page(client, "/files/0")
        assert "leads out of the folder" in words_of(page)
        assert not [link for link in links_of(page) if "link_out" in link]


@pytest.mark.parametrize("page", ["files", "raw", "step", "live/step"])
def test_files_with_keys_are_listed_and_not_opened_not_even_by_a_link(
    tmp_path: pathlib.Path, serve: Callable[..., Any], page: str
) -> None:
    Access(tmp_path, 8323)
    (tmp_path / ".env").write_text("OPENAI_API_KEY=the secret")
    (tmp_path / "notes.txt").symlink_to(".key")
    key = (tmp_path / ".key").read_bytes()
    with serve(tmp_path) as client:
        for name in (".key", ".env", "notes.txt"):
            for query in ("", "?view=text", "?q=s"):
                answer = client.get(f"/{page}/0/{name}{query}")
                assert answer.status == 403 and key not in answer.body and b"the secret" not in answer.body
        listed = words_of(open_page(client, "/files/0"))
        assert listed.count("A file of this name holds keys, so it is not shown.") == 3
        path = client.get(f"/experiment?path={tmp_path}/.key")
        assert path.status in (403, 404) and key not in path.body


def test_link_that_is_swapped_in_while_a_file_is_opened_leads_nowhere(fenced: pathlib.Path) -> None:
    from starlette.exceptions import HTTPException

    from marin.site.browser import roots

    (root,) = roots.make_roots([str(fenced)])
    target = fenced / "a" / "swapped.txt"
    target.write_text("inside\n")
    place = roots.resolve(root, ("a", "swapped.txt"))
    target.unlink()
    target.symlink_to(fenced.parent / "secret.txt")
    with pytest.raises(HTTPException):
        roots.open_file(place)
    target.unlink()


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", "", "[::1]", "a@127.0.0.1:{port}"],
)
def test_requests_under_another_host_name_are_refused(client: Any, host: str) -> None:
    answer = client.get("/", host=host.format(port=client.port))
    assert answer.status == 421 and "Experiments" not in answer.text


def test_own_names_are_answered_and_only_get_and_head_are_allowed(client: Any) -> None:
    for name in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST"):
        assert client.get("/", host=f"{name}:{client.port}").status == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert client.get("/", method=method).status == 405
    assert client.get("/", method="HEAD").body == b""


def test_error_of_our_own_is_answered_by_a_page_that_says_no_more_of_it(
    tmp_path: pathlib.Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(site: Any, request: Any) -> Any:
        raise RuntimeError("something of ours")

    monkeypatch.setattr(run_pages, "home", broken)
    with serve(tmp_path) as own:
        answer = own.get("/")
    assert answer.status == 500
    words = words_of(answer.text)
    assert "Something broke" in words and "The terminal where it was started says more." in words
    assert "something of ours" not in words


def test_every_answer_carries_the_policy(client: Any) -> None:
    for path in ("/", "/steps", CORPUS, "/none", "/files/0/none", "/static/browser.js", f"/step/0/{RUN}"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers


def test_hostile_names_and_contents_are_escaped_and_made_visible(client: Any, browser_prefix: Any) -> None:
    listing = open_page(client, "/files/0/hostile")
    words = words_of(listing)
    assert "new\\nline.log" in words and "rtl \\u202egnp.txt" in words and "zero\\u200bwidth.txt" in words
    assert "bytes \\udcff\\udcfe.txt" in words and "{{7*7}}${7*7}.txt" in words
    addresses = [link for link in links_of(listing) if link.startswith("/files/0/hostile/")]
    assert len(addresses) == 12  # all but the one with a backslash
    pages = [
        listing,
        open_page(client, "/"),
        open_page(client, "/steps"),
        open_page(client, "/step/0/hostile/step-77777777"),
    ]
    pages += [open_page(client, address) for address in addresses]
    pages.append(
        open_page(client, f"/experiment/0/{quote(next((browser_prefix.path / 'experiments').glob('<img*')).name)}")
    )
    for query in ("<script>alert(1)</script>", "\"'><img src=x>"):
        pages += [
            open_page(client, f"{path}?q={quote(query)}") for path in ("/", "/steps", CORPUS, f"{CORPUS}/train.jsonl")
        ]
    for page in pages:
        assert "<script>" not in page and "<img" not in page and 'onerror="' not in page
        assert "\u202e" not in page and "\x1b" not in page
        assert not re.search(r"<[^>]* style=|<style|javascript:", page)
    assert client.get("/raw/0/hostile/new%0Aline.log").headers["content-disposition"].count("\n") == 0
    assert client.get("/files/0/hostile/back%5Cslash.txt").status == 403


def test_pages_load_nothing_from_elsewhere(client: Any, browser_prefix: Any) -> None:
    for path in ("/", "/steps", CORPUS, f"/step/0/{browser_prefix.run}", "/experiment/0/main-abc123.json"):
        page = open_page(client, path).replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert re.findall(r'(?:src|href|action)="(?!/|#|\?)[^"]*"', page) == []
        assert "http" not in page.split("<footer>")[0]


# --- the command --------------------------------------------------------------------------------------------------


def _browse(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "marin", "browse", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_command_prints_its_address_and_stops_cleanly_on_ctrl_c(browser_prefix: Any) -> None:
    process = _browse(
        "--prefix", str(browser_prefix.path), "--port", "0", "--root", str(browser_prefix.path / "hostile")
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines[0] == f"showing {browser_prefix.path}\n"
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)", lines[2])
    with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as connection:
        connection.sendall(f"GET /files/1 HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode())
        assert b"200 OK" in connection.recv(100)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "stopped\n", "")


def test_command_refuses_what_it_cannot_show_with_one_message(browser_prefix: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        cases = [
            (["--prefix", str(browser_prefix.path), "--port", port], f"port {port} on 127.0.0.1 is in use"),
            (["--prefix", str(tmp_path / "none")], "is not there: run an experiment first"),
            (["--prefix", str(tmp_path / "file")], "is a file, not a folder"),
            (["--prefix", "gs://bucket/x"], "is not on this machine"),
            (["--prefix", str(tmp_path), "--port", "70000"], "use a number from 0 to 65535"),
        ]
        started = [(_browse(*arguments, cwd=tmp_path), message) for arguments, message in cases]
        for process, message in started:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 2 and out == ""
            assert err.startswith("error: ") and message in err and err.count("\n") == 1
