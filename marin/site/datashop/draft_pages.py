"""Before a run: its files, its form, the prompt tried on ten documents, and the page that says what starting will do and cost."""

import dataclasses
import decimal
import os
import shutil
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from marin.errors import MarinError
from marin.site.datashop import rendering, trying, wishes
from marin.site.datashop.runs import CONFIG, Run
from marin.site.datashop.shop import Form, Shop, value_of
from marin.site.datashop.taking import SPLITS
from marin.site.datashop.wishes import Checked, Wish, config_text

_NOT_FOR_A_PROMPT = {"pool", "pool_path"}
_NOT_FOR_A_TRIAL = {"name", "sample_size", "keep_percent", "threshold", "deduplicate", "vocab_size", "form"}


def run_of(shop: Shop, request: Request) -> Run:
    """Raises HTTPException 404 if there is no such run."""
    run = shop.runs.get(request.path_params["id"])
    if run is None:
        raise HTTPException(404, "There is no such dataset. It may have been removed.")
    return run


def draft_page(shop: Shop, request: Request, run: Run) -> Response:
    """The form. With `check` in the address it says what is missing; else that is not known yet, as the person is writing."""
    checked = wishes.check(run.wish, shop.uploads, shop.folders)
    asked = request.query_params.get("check", "")
    needed = {"try": _trial_problems, "write": _prompt_problems, "all": lambda checked: checked.problems}.get(asked)
    problems = needed(checked) if needed is not None else {}
    return rendering.page(
        "draft.html.j2",
        shop=shop,
        section="",
        run=run,
        wish=run.wish,
        problems=problems,
        uploads=shop.uploads.all(),
        ways=wishes.WAYS,
        processors=wishes.PROCESSORS,
        duplicates=wishes.DUPLICATES,
        built_in=wishes.BUILT_IN,
        splits=SPLITS,
        has_key=_has_key(),
        trial=_trial(shop, run, checked),
        most=_most_cost(shop, run, checked),
    )


def review_page(shop: Shop, request: Request) -> Response:
    """What starting will do, and what labelling should cost."""
    run = run_of(shop, request)
    checked = wishes.check(run.wish, shop.uploads, shop.folders)
    if checked.problems or not run.is_draft:
        return RedirectResponse(f"/runs/{run.id}" + ("?check=all" if run.is_draft else ""), 303)
    files = {
        name: [found.name for number in getattr(run.wish, name) if (found := shop.uploads.get(number))]
        for name in ("pool", "positives", "negatives", "corpus")
    }
    return rendering.page(
        "review.html.j2",
        shop=shop,
        section="",
        run=run,
        wish=run.wish,
        files=files,
        ways=wishes.WAYS,
        duplicates=wishes.DUPLICATES,
        built_in=wishes.BUILT_IN,
        amounts=_amounts(checked.settings),
        trial=_trial(shop, run, checked),
        config=config_text(checked.settings, str(run.folder / CONFIG)),
        has_key=_has_key(),
    )


def files_page(shop: Shop, request: Request) -> Response:
    uploads = shop.uploads.all()
    return rendering.page("files.html.j2", shop=shop, section="files", uploads=uploads, splits=SPLITS)


# --- what forms do ------------------------------------------------------------------------------------------------------


def create(shop: Shop, request: Request, form: Form) -> Response:
    """A new draft; with `from` one like another run."""
    other = shop.runs.get(value_of(form, "from"))
    run = shop.runs.create(other.wish if other is not None else Wish())
    return RedirectResponse(f"/runs/{run.id}", 303)


def remove_file(shop: Shop, request: Request, form: Form) -> Response:
    """Forgets an upload, unless a run at work may still have to read it."""
    number = value_of(form, "id")
    reader = next((run for run in shop.runs.all() if run.is_alive and number in run.wish.files), None)
    if reader is not None:
        raise HTTPException(
            409, f"The file was not removed, as {reader.title} is at work with it: stop that run first."
        )
    shop.uploads.remove(number)
    return RedirectResponse("/files", 303)


def act(shop: Shop, request: Request, form: Form) -> Response:
    """What a button of a run's page asks for."""
    run = run_of(shop, request)
    action = value_of(form, "action")
    if action == "remove":
        shop.runs.remove(run)
        return RedirectResponse("/", 303)
    if run.is_draft and action in ("save", "try", "write", "review"):
        sent = Wish.from_form(form)
        saved = shop.runs.update(run.id, lambda wish: sent)
        if saved is None:  # removed or started in another window at this moment
            return RedirectResponse(f"/runs/{run_of(shop, request).id}", 303)
        if action == "review":
            return RedirectResponse(f"/runs/{run.id}/review", 303)
        do = {"try": _try, "write": _write_prompt}.get(action)
        return do(shop, saved) if do is not None else RedirectResponse(f"/runs/{run.id}", 303)
    if run.is_draft and action == "start":
        checked = wishes.check(run.wish, shop.uploads, shop.folders)
        if checked.problems:
            return RedirectResponse(f"/runs/{run.id}?check=all", 303)
        shop.runs.start(run, checked.settings)
    elif not run.is_draft and action == "resume":
        shop.runs.start(run, None)
    elif action in ("stop", "kill"):
        shop.runs.stop(run, at_once=action == "kill")
    elif action not in ("save", "try", "write", "review", "start", "resume"):
        raise HTTPException(400, "The page has no such button.")
    return RedirectResponse(f"/runs/{run.id}", 303)


def _try(shop: Shop, run: Run) -> Response:
    checked = wishes.check(run.wish, shop.uploads, shop.folders)
    if run.wish.way != "prompt":
        raise HTTPException(400, "Only a prompt can be tried on ten documents: choose “A prompt” first.")
    if _trial_problems(checked):
        return RedirectResponse(f"/runs/{run.id}?check=try#problems", 303)
    try:
        size = int(checked.settings.get("sample_size", 2000))
        found = trying.try_wish(checked.settings, size, shop.prefix)
    except MarinError as error:
        found = {"wish": trying.wish_digest(checked.settings), "problem": str(error)}
    shop.runs.save_trial(run, found)
    return RedirectResponse(f"/runs/{run.id}#trial", 303)


def _write_prompt(shop: Shop, run: Run) -> Response:
    """Has the model write the prompt for the target text; from then on the wish is that prompt.

    That takes minutes, in which the person may change, start or remove the draft: what else was filled in stays, and a
    draft that is gone, was started or is described in another way by then is left alone.
    """
    checked = wishes.check(run.wish, shop.uploads, shop.folders)
    if run.wish.way != "corpus" or _prompt_problems(checked):
        return RedirectResponse(f"/runs/{run.id}?check=write#problems", 303)
    try:
        prompt = trying.written_prompt(checked.settings, str(run.folder / "medu"), shop.prefix)
    except MarinError as error:
        shop.runs.save_trial(run, {"wish": "", "problem": str(error)})
        return RedirectResponse(f"/runs/{run.id}#written", 303)
    asked = (run.wish.way, run.wish.corpus)

    def written(wish: Wish) -> Wish:
        is_same = (wish.way, wish.corpus) == asked
        return dataclasses.replace(wish, way="prompt", prompt=prompt, processor_type="medu") if is_same else wish

    now = shop.runs.update(run.id, written)
    if shop.runs.get(run.id) is None:
        shutil.rmtree(run.folder, ignore_errors=True)  # what the writing left where the draft was
    if now is None or now.wish.prompt != prompt:
        return RedirectResponse(f"/runs/{run.id}" if shop.runs.get(run.id) is not None else "/", 303)
    shop.runs.save_trial(run, {"wish": ""})
    return RedirectResponse(f"/runs/{run.id}#prompt", 303)


def _prompt_problems(checked: Checked) -> dict[str, str]:
    """What keeps a prompt from being written."""
    return {field: problem for field, problem in _trial_problems(checked).items() if field not in _NOT_FOR_A_PROMPT}


def _trial_problems(checked: Checked) -> dict[str, str]:
    """What keeps a prompt from being tried."""
    return {field: problem for field, problem in checked.problems.items() if field not in _NOT_FOR_A_TRIAL}


def _trial(shop: Shop, run: Run, checked: Checked) -> dict[str, Any] | None:
    """The last trial; `is_old` if it was of another prompt, model or pool; the estimate is for the sample as it is."""
    found = shop.runs.trial(run)
    if found is None or not run.wish.needs_model:
        return None
    needed = {"data_filter_prompt", "annotator_model_name", "pretraining_data_path"}
    is_whole = needed <= set(checked.settings)
    found = {"problem": "", "trials": [], "estimate": None, "no_estimate": ""} | found
    found["is_old"] = not is_whole or found.get("wish") != trying.wish_digest(checked.settings)
    estimate, size = found.get("estimate"), _sample_size(shop, run, checked)
    if estimate and size and estimate["num_documents"]:
        times = size / estimate["num_documents"]
        estimate["num_documents"] = size
        estimate["tokens"] = [times * value for value in estimate["tokens"]]
        estimate["dollars"] = [times * value for value in estimate["dollars"]] if estimate["dollars"] else None
    return found


def _sample_size(shop: Shop, run: Run, checked: Checked) -> int | None:
    """How many documents would be labelled: as many as asked for, or all of a pool that is known to have fewer."""
    size = checked.settings.get("sample_size")
    uploads = [shop.uploads.get(number) for number in run.wish.pool]
    if size is None or run.wish.pool_path or None in uploads:
        return size
    return min(size, sum(upload.documents for upload in uploads if upload is not None))


def _most_cost(shop: Shop, run: Run, checked: Checked) -> tuple[int, float | None] | None:
    """What a trial can cost; None where it is not known, or where a page would have to read more than uploads for it."""
    if run.wish.way != "prompt" or run.wish.pool_path or wishes.BUILT_IN in run.wish.pool or _trial_problems(checked):
        return None
    try:
        return trying.most_cost(checked.settings, shop.prefix)
    except MarinError:
        return None


def _amounts(settings: Mapping[str, Any]) -> dict[str, str]:
    """The numbers that the run will take, with all their digits; the part that is kept in percent."""
    numbers = {name: settings[name] for name in ("sample_size", "threshold", "keep_fraction") if name in settings}
    numbers |= settings.get("text_generation_inference_config_kwargs", {})
    exact = {name: decimal.Decimal(repr(number)) for name, number in numbers.items()}
    if "keep_fraction" in exact:
        exact["keep_percent"] = 100 * exact["keep_fraction"]
    return {name: f"{number.normalize():,f}" for name, number in exact.items()}


def _has_key() -> bool:
    return bool(os.environ.get("OPENAI_API_KEY"))
