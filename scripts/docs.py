"""Builds the documentation site from `docs/` into `build/site`: `make docs`, or `python -m scripts.docs`.

The pages are the Markdown files as they are, and the README is the first of them. They are copied to `build/docs`, where links
that leave `docs/` become links to the repository; then Zensical builds the site, and every page that came out is checked:
internal links and anchors lead somewhere, and no page loads anything from elsewhere. Nothing needs the network.
"""

import importlib.util
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from marin.errors import ConfigError, clean_exit
from marin.flags import Parser

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "mkdocs.yml"
# Lies in every site, so that a later build knows what it may remove.
MARK = ".marin-docs"
_NOWHERE = "404.html"
_FENCE = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_ASKED_FOR = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_STYLE_URL = re.compile(r"""url\(\s*['"]?((?:https?:)?//[^)'"\s]+)|@import\s+['"]((?:https?:)?//[^'"]+)""")
_NO_REQUEST = ("canonical", "alternate", "prev", "next", "license", "author")

# What stands first in each part; the other pages follow by their titles.
_FIRST = {
    "tutorials": [
        "installation", "first-experiment", "submitting-speedrun", "train-on-a-gpu", "cluster", "scale", "add-optimizer",
        "add-dataset", "prepare-data", "datashop", "time-to-gpt2",
    ],
    "explanations": ["speedrun", "speedrun-flops-accounting", "marin-prefix", "experiments", "executor"],
    "reports": ["index"],
    "reference": [],
}  # fmt: skip
_PARTS = {"tutorials": "Tutorials", "explanations": "Explanations", "reference": "Reference", "reports": "Reports"}
_DEVELOPERS = ["architecture", "changing", "coverage", "LOG", "CHANGELOG"]


# --- the pages ----------------------------------------------------------------------------------------------------


def stage(root: Path, folder: Path, url: str | None = None) -> None:
    """Writes the pages to `folder / "pages"` and the configuration with its navigation beside them; `url` as of `build`."""
    pages = folder / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "docs", pages)
    config = yaml.safe_load((root / CONFIG).read_text(encoding="utf-8"))
    moved = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md"}
    for name, target in moved.items():
        shutil.copy(root / name, pages / target)
    home = {target: name for name, target in moved.items()}
    for path in sorted(pages.rglob("*.md")):
        inside = path.relative_to(pages).as_posix()
        source = home.get(inside, f"docs/{inside}")
        text = path.read_text(encoding="utf-8")
        path.write_text(_relinked(text, source, inside, moved, config["extra"]["repository"]), encoding="utf-8")
    config |= {"docs_dir": "pages", "site_dir": "site", "nav": navigation(pages)}
    config |= {} if url is None else {"site_url": url}
    (folder / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def _relinked(text: str, source: str, inside: str, moved: Mapping[str, str], repository: str) -> str:
    """The page with links that lead to the same files from where it stands on the site."""

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        if not target or urlsplit(target).scheme:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if file in moved or file.startswith("docs/"):
            place = moved.get(file, file.removeprefix("docs/"))
            target = posixpath.relpath(place, posixpath.dirname(inside) or ".")
        else:
            target = f"{repository}/blob/main/{file}"
        return f"{match[1]}{target}{'#' + anchor if anchor else ''}{match[3]}"

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(link, text[end:])])


def navigation(pages: Path) -> list[dict[str, Any]]:
    """Every page once, in parts; a page that is new comes along by itself."""
    nav: list[dict[str, Any]] = [{"Home": "index.md"}]
    for part, title in _PARTS.items():
        names = {path.stem: path for path in (pages / part).glob("*.md")}
        first = [name for name in _FIRST[part] if name in names]
        rest = sorted(names.keys() - set(first), key=lambda name: title_of(names[name]).casefold())
        if part == "reports":
            rest.sort(key=lambda name: -int(re.sub(r"\D", "", name.partition("_")[0]) or 0))
        listed = [{title_of(names[name]): f"{part}/{name}.md"} for name in [*first, *rest]]
        if listed:
            nav.append({title: listed})
    there = [name for name in _DEVELOPERS if (pages / f"{name}.md").is_file()]
    nav.append({"Developers": [{title_of(pages / f"{name}.md"): f"{name}.md"} for name in there]})
    return nav


def title_of(page: Path) -> str:
    """The first heading of a page, as plain text."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    heading = re.search(r"^# +(.+)$", text, re.MULTILINE)
    return re.sub(r"[`*]", "", heading[1]).strip() if heading else page.stem


# --- building -----------------------------------------------------------------------------------------------------


def build(root: Path, folder: Path, site: Path, url: str | None = None) -> None:
    """Makes the site in `site` by way of `folder`.

    Args:
        url: where it will be published, with a slash at its end. Pages work anywhere without it; the list of pages for search
            engines and the page for addresses that lead nowhere do not, so they are made only with it.
    Raises:
        ConfigError: `site` holds what is no earlier site; Zensical is not installed, complains, or a page has a fault of `faults`.
    """
    if site != folder.parent / "site":  # which is this command's own
        check_replaceable(site)
    if importlib.util.find_spec("zensical") is None:
        raise ConfigError(
            "the site is built by Zensical, which is not installed: run `make docs`, or install the extra `docs`"
        )
    stage(root, folder, url)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", CONFIG]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 or "No issues found" not in done.stdout + done.stderr:
        raise ConfigError(f"Zensical did not build the pages in {folder / 'pages'}:\n{done.stdout}{done.stderr}")
    if url is None:
        for name in (_NOWHERE, "sitemap.xml"):
            (folder / "site" / name).unlink(missing_ok=True)
    found = faults(folder / "site")
    if found:
        raise ConfigError(f"{len(found)} faults in the site's pages:\n" + "\n".join(found[:40]))
    (folder / "site" / MARK).touch()
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(folder / "site", site)


def check_url(url: str) -> str:
    """The address of a site, with a slash at its end.

    Raises:
        ConfigError: it is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            f"--site-url is {url}: give the address of the site's folder, such as https://example.org/marin/"
        )
    return f"{url.rstrip('/')}/"


def check_replaceable(site: Path) -> None:
    """Raises:
    ConfigError: something is there that this command did not make, and that a new site would remove.
    """
    if site.is_dir() and ((site / MARK).is_file() or not any(site.iterdir())):
        return
    if site.exists():
        found = "holds files that are" if site.is_dir() else "is a file that is"
        raise ConfigError(
            f"{site} {found} no site made by this command, and a site there would replace what is there: name a folder"
            " that is not there yet with --output"
        )


# --- checking -----------------------------------------------------------------------------------------------------


class _Page(HTMLParser):
    """What a page links to, what it loads, and which anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        asked = values.get(_ASKED_FOR.get(tag, ""))
        if asked and not (tag == "link" and values.get("rel") in _NO_REQUEST):
            self.loads.append(asked)
        self.loads += [first or second for first, second in _STYLE_URL.findall(values.get("style", ""))]


def faults(site: Path) -> list[str]:
    """Links that lead nowhere, and whatever a page would load from another place."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    return [*_broken_links(site, pages), *_foreign_loads(site, pages)]


def _broken_links(site: Path, pages: Mapping[Path, _Page]) -> Iterator[str]:
    for path, page in pages.items():
        if path.name == _NOWHERE:  # its links are absolute, for where the site will lie
            continue
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path if not parts.path else Path(os.path.normpath(path.parent / unquote(parts.path)))
            if target.is_dir():
                target /= "index.html"
            name = path.relative_to(site)
            if not target.is_file() or not target.is_relative_to(site):
                yield f"{name}: {link} leads nowhere"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name}: {link} names a heading that is not there"


def _foreign_loads(site: Path, pages: Mapping[Path, _Page]) -> Iterator[str]:
    for path, page in pages.items():
        for link in page.loads:
            if urlsplit(link).netloc:
                yield f"{path.relative_to(site)}: loads {link}"
    for path in sorted(site.rglob("*.css")):
        for first, second in _STYLE_URL.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: loads {first or second}"


def main() -> None:
    parser = Parser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "site", help="a folder for the site alone; default: build/site"
    )
    parser.add_argument(
        "--site-url", metavar="URL", help="where it will be published, such as https://example.org/marin/: adds a sitemap and a 404 page"
    )  # fmt: skip
    with clean_exit():
        arguments = parser.parse_args()
        url = None if arguments.site_url is None else check_url(arguments.site_url)
        build(ROOT, ROOT / "build" / "docs", arguments.output.resolve(), url)
        shown = os.path.relpath(arguments.output)
        print(f"open {shown}/index.html; with search: python -m http.server --directory {shown}")


if __name__ == "__main__":
    main()
