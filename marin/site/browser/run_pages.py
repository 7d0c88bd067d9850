"""Pages about experiments and steps, and the parts of them that a page asks for again while a step runs."""

import json
import time
from typing import Any, TypeGuard

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from marin.execution.status import ERROR_NAME, INFO_NAME, LOG_NAME
from marin.number_checks import is_whole
from marin.site import wording
from marin.site.browser import charts, graph, json_view, listing, metrics, records, rendering, roots, shown, text
from marin.site.browser.records import Experiment, Records, State, Step
from marin.site.browser.rendering import number_of, page_within, text_of, with_query
from marin.site.browser.roots import Place
from marin.site.browser.site import Site, StepLink
from marin.storage.lease import STALE_AFTER
from marin.tracking.run_record import RUN_FILE

_LOG_BYTES = 16_000
_PAGE = 100
_HIDDEN_KEYS = ("config", "version", "dependencies")


def home(site: Site, request: Request) -> Response:
    """Experiments, newest first, and how far all steps are."""
    query = text_of(request, "q").casefold()
    found = [
        (index, experiment)
        for index in map(site.records, site.roots)
        for experiment in index.experiments()
        if query in f"{experiment.title} {experiment.description}".casefold()
    ]
    found.sort(key=lambda item: (item[1].created or 0, item[1].file), reverse=True)
    number, pages = page_within(number_of(request, "page", 1), len(found), _PAGE)
    lines = [_experiment_line(index, experiment) for index, experiment in found[(number - 1) * _PAGE : number * _PAGE]]
    return rendering.page(
        "home.html.j2",
        site=site,
        lines=lines,
        count=len(found),
        number=number,
        pages=pages,
        q=text_of(request, "q"),
        page_link=lambda number: with_query("/", q=text_of(request, "q"), page=number),
        states=_count_states(site),
        words=records.WORDS,
        is_truncated=any(site.records(root).truncated for root in site.roots),
    )


def steps(site: Site, request: Request) -> Response:
    """Every step of every folder, of one state if asked for."""
    wanted, query = text_of(request, "state"), text_of(request, "q")
    words = query.casefold().split()
    found = []
    for index in map(site.records, site.roots):
        for step in index.steps().values():
            if all(word in f"{step.name} {step.relative}".casefold() for word in words):
                found.append((index, step, index.state(step.parts)))
    if wanted in records.WORDS:
        found = [item for item in found if item[2].word == wanted]
    found.sort(key=lambda item: (item[2].since or 0, item[1].parts), reverse=True)
    number, pages = page_within(number_of(request, "page", 1), len(found), _PAGE)
    links = [site.link(index, step) for index, step, _ in found[(number - 1) * _PAGE : number * _PAGE]]
    return rendering.page(
        "steps.html.j2",
        site=site,
        page_link=lambda number: with_query("/steps", state=wanted, q=query, page=number),
        links=links,
        count=len(found),
        number=number,
        pages=pages,
        q=query,
        wanted=wanted if wanted in records.WORDS else "",
        words=records.WORDS,
    )


def experiment(site: Site, request: Request) -> Response:
    """An experiment: its graph, its steps, its record."""
    index, found = _experiment(site, request)
    facts = [(key, value) for key, value in found.info.items() if key not in ("steps", "description")]
    return rendering.page(
        "experiment.html.j2",
        site=site,
        experiment=found,
        facts=[(key, json_view.tree(value)[0]) for key, value in facts],
        record=roots.url_of(index.root, (records.EXPERIMENTS, found.file)),
        live_address=with_query(
            roots.url_of(index.root, (found.file,), "live/experiment"), page=text_of(request, "page", 20)
        ),
        **_experiment_live(site, index, found, request),
    )


def experiment_live(site: Site, request: Request) -> Response:
    """The part of `experiment` that changes while it runs."""
    index, found = _experiment(site, request)
    return rendering.page("experiment_live.html.j2", **_experiment_live(site, index, found, request))


def step(site: Site, request: Request) -> Response:
    """A step: how far it is, its curves, log and error, its config and its record."""
    place, index, found = _step(site, request)
    info = found.info
    return rendering.page(
        "step.html.j2",
        site=site,
        place=place,
        step=found,
        crumbs=listing.breadcrumbs(place),
        config=json_view.tree(info["config"])[0] if "config" in info else None,
        version=json_view.tree(info["version"])[0] if "version" in info else None,
        provenance=[(key, json_view.tree(value)[0]) for key, value in info.items() if key not in _HIDDEN_KEYS],
        record=roots.url_of(index.root, (*found.parts, INFO_NAME)),
        has_record=roots.resolve(index.root, (*found.parts, INFO_NAME)).exists,
        reads=_links(site, index, found.reads),
        readers=[site.link(index, reader) for reader in index.readers(found.parts)],
        experiments=[
            (name.removesuffix(".json"), roots.url_of(index.root, (name,), "experiment")) for name in found.experiments
        ],
        live_address=place.url("live/step"),
        **_step_live(index, place, found),
    )


def step_live(site: Site, request: Request) -> Response:
    """The part of `step` that changes while it runs."""
    place, index, found = _step(site, request)
    return rendering.page("step_live.html.j2", **_step_live(index, place, found))


# --- inside -------------------------------------------------------------------------------------------------------


def _experiment(site: Site, request: Request) -> tuple[Records, Experiment]:
    place = site.place(request)
    index = site.records(place)
    found = index.experiment(place.relative)
    if found is None:
        raise HTTPException(404, f"There is no record of an experiment {shown.name(place.relative)!r} here.")
    return index, found


def _step(site: Site, request: Request) -> tuple[Place, Records, Step]:
    place = site.place(request)
    index = site.records(place)
    found = index.steps().get(place.parts)
    if found is None:
        maker = index.maker(place)
        found = maker if maker is not None and maker.parts == place.parts else None
    if found is None:
        raise HTTPException(404, "No step has its output here. It may have been moved or removed.")
    return place, index, found


def _experiment_line(index: Records, experiment: Experiment) -> dict[str, Any]:
    return {
        "experiment": experiment,
        "url": roots.url_of(index.root, (experiment.file,), "experiment"),
        "counts": _counted([index.state(parts).word for parts in experiment.steps]),
        "total": len(experiment.steps),
    }


def _counted(words: list[str]) -> list[tuple[str, str, int]]:
    """(word, css, number) of the states that occur, in the order of `records.WORDS`."""
    return [(word, word.replace(" ", "-"), words.count(word)) for word in records.WORDS if word in words]


def _count_states(site: Site) -> list[tuple[str, str, int, str]]:
    words = [index.state(parts).word for index in map(site.records, site.roots) for parts in index.steps()]
    return [(word, css, count, with_query("/steps", state=word)) for word, css, count in _counted(words)]


def _links(site: Site, index: Records, outputs: tuple[tuple[str, ...], ...]) -> list[StepLink]:
    known = index.steps()
    found = []
    for parts in outputs:
        if parts in known:
            found.append(site.link(index, known[parts]))
        else:
            relative = "/".join(parts)
            found.append(StepLink(relative, relative, roots.url_of(index.root, parts), index.state(parts)))
    return found


def _experiment_live(site: Site, index: Records, experiment: Experiment, request: Request) -> dict[str, Any]:
    known = index.steps()
    links = [site.link(index, known[parts]) for parts in experiment.steps if parts in known]
    drawing = None
    if 0 < len(links) <= graph.MOST_NODES:
        places = {parts: number for number, parts in enumerate(p for p in experiment.steps if p in known)}
        nodes = [
            graph.Node(
                shown.name(known[parts].name, 120),
                link.url,
                link.state.word,
                link.state.css,
                tuple(places[source] for source in known[parts].reads if source in places and source != parts),
            )
            for parts, link in zip(places, links)
        ]
        drawing = graph.draw(nodes)
    number, pages = page_within(number_of(request, "page", 1), len(links), _PAGE)
    return {
        "drawing": drawing,
        "links": links[(number - 1) * _PAGE : number * _PAGE],
        "total": len(links),
        "number": number,
        "pages": pages,
        "page_link": lambda number: with_query(roots.url_of(index.root, (experiment.file,), "experiment"), page=number),
        "counts": _counted([link.state.word for link in links]),
        "is_live": _goes_on(experiment, [link.state for link in links]),
        "most_nodes": graph.MOST_NODES,
    }


def _goes_on(experiment: Experiment, states: list[State]) -> bool:
    """Whether the page should look again: a step is at work, or one may be about to begin.

    Each has a process of its own, which takes seconds to start: before the first and between two of them none is at work.
    """
    if any(state.is_live for state in states):
        return True
    latest = max((since for since in (experiment.created, *(state.since for state in states)) if since), default=0.0)
    return time.time() - latest < STALE_AFTER and any(state.word != "success" for state in states)


def _step_live(index: Records, place: Place, found: Step) -> dict[str, Any]:
    state = index.state(found.parts)
    run = metrics.read_run(place)
    main, more = charts.of_run(run) if run else ([], [])
    return {
        "state": state,
        "meaning": records.WORDS[state.word],
        "is_live": state.is_live,
        "facts": _facts(found, state.is_live),
        "run": run,
        "run_facts": _run_facts(run, place) if run else [],
        "charts": main,
        "more_charts": more,
        "log": _tail(place, LOG_NAME),
        "log_address": with_query(roots.url_of(place.root, (*place.parts, LOG_NAME)), at="end"),
        "error": _tail(place, ERROR_NAME) if state.word in ("failed", "interrupted", "running") else None,
        "attempts": [
            (number, roots.url_of(place.root, parts), index.state(parts))
            for number, parts in index.attempts(place.parts)
        ],
    }


def _facts(found: Step, is_live: bool) -> list[tuple[str, str]]:
    info = found.info
    facts = []
    start = shown.timestamp(info.get("start_date")) or shown.timestamp(info.get("created_date"))
    if start is not None:
        facts.append(("Started", f"{shown.clock(start)} UTC"))
    end = shown.timestamp(info.get("end_date"))
    if end is not None:
        facts.append(("Ended", f"{shown.clock(end)} UTC"))
    seconds = info.get("seconds")
    if _is_sane(seconds):
        facts.append(("Took", wording.duration(seconds) or ""))
    elif is_live and start is not None:
        facts.append(("Running for", wording.duration(max(0.0, time.time() - start)) or ""))
    if isinstance(host := info.get("host"), str):
        facts.append(("Host", shown.name(host, 60)))
    if _is_sane(size := info.get("output_bytes")):
        count = info.get("output_files")
        facts.append(("Output", shown.size(size) + (f" in {count:,} files" if isinstance(count, int) else "")))
    if isinstance(commit := info.get("git_commit"), str):
        facts.append(("Commit", shown.name(commit[:12]) + (" with changes" if info.get("git_dirty") else "")))
    return facts


def _is_sane(value: Any) -> TypeGuard[float]:
    """Whether a recorded figure can be one of seconds or bytes; a record may hold anything."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _run_facts(run: metrics.Run, place: Place) -> list[tuple[str, str]]:
    facts = []
    if run.last_step is not None:
        total = _total_steps(place)
        done = run.last_step + 1
        facts.append(("Steps", f"{done:,} of {total:,}" if total else f"{done:,}"))
    for name, title in (("loss", "Loss"), ("tokens_per_second", "Tokens per second")):
        if run.series.get(name) and run.series[name].values:
            facts.append((title, shown.number(run.series[name].values[-1])))
    if run.tokens:
        facts.append(("Tokens", shown.number(run.tokens)))
    if run.restarts > 1:
        facts.append(("Starts", f"{run.restarts}"))
    return facts


def _total_steps(place: Place) -> int | None:
    """The number of steps that the run's own record plans."""
    try:
        data = roots.read_start(roots.resolve(place.root, (*place.parts, RUN_FILE)), 4_000_000)
    except HTTPException:
        return None
    value: Any = _parsed(data)
    for key in ("config", "train", "num_train_steps"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if is_whole(value) else None


def _parsed(data: bytes | None) -> Any:
    try:
        return json.loads(data) if data else None
    except (ValueError, RecursionError):
        return None


def _tail(place: Place, name: str) -> str | None:
    try:
        with roots.open_file(roots.resolve(place.root, (*place.parts, name))) as file:
            return text.tail(file, _LOG_BYTES)
    except HTTPException:
        return None
