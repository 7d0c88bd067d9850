"""What each stage of a data preparation kept and dropped, and why, as a page, a table in the terminal, and JSON.

The last step of a chain of document sets and token caches. Everything comes from the `report.json` of each set (see
`marin.data.shards`) and from the opened mixture; nothing is counted again. Equal inputs give equal bytes.
"""

import dataclasses
from collections.abc import Mapping

from marin.data.loader import open_batches
from marin.data.mixture import Mixture
from marin.data.shards import REPORT, DocumentSet
from marin.errors import DataError
from marin.execution.attempts import usual_path
from marin.execution.step import ExecutorStep, Input, this_output_path
from marin.site import pages, wording
from marin.storage import files


@dataclasses.dataclass(frozen=True)
class DataReportConfig:
    """Args:
    stages: the document sets in the order in which they were made, by the names to show.
    mixture: of the token caches that were made of the last set.
    context_length: tokens per row, which the mixture's weights count.
    """

    title: str
    stages: Mapping[str, Input]
    mixture: Mixture
    context_length: int = 1024
    output_path: str = this_output_path()


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage's counts; `dropped` is by reason, the most frequent first, with example ids."""

    name: str
    stage: str
    documents_in: int
    documents_kept: int
    documents_changed: int
    bytes_in: int
    bytes_kept: int
    dropped: tuple[tuple[str, int, tuple[str, ...]], ...]

    @property
    def documents_dropped(self) -> int:
        return self.documents_in - self.documents_kept


@dataclasses.dataclass(frozen=True)
class Component:
    """One token cache; `share` is its part of what the mixture draws in one epoch of all rows, `epochs` how often it is seen."""

    name: str
    documents: int
    tokens: int
    share: float
    epochs: float


def data_report_step(name: str, stages: Mapping[str, Input], mixture: Mixture, *, title: str) -> ExecutorStep:
    """The step that reports on a chain once all of it is done."""
    config = DataReportConfig(title, dict(stages), mixture)
    return ExecutorStep(name=name, fn=write_data_report, config=config, description="what each stage of the data kept")


def write_data_report(config: DataReportConfig) -> None:
    """Writes `index.html` and `report.json`, and prints a table.

    Raises:
        DataError: a stage has no readable report.
        CacheError: a cache cannot be opened.
    """
    stages = [read_stage(name, str(path)) for name, path in config.stages.items()]
    components = read_components(config.mixture, config.context_length)
    value = {
        "title": config.title,
        "stages": [dataclasses.asdict(stage) for stage in stages],
        "components": [dataclasses.asdict(component) for component in components],
    }
    files.write_json(files.join(config.output_path, "report.json"), value)
    page = render(config.title, stages, components)
    index = files.join(config.output_path, "index.html")
    files.write_bytes(index, page.encode("utf-8", "xmlcharrefreplace"))
    _print_table(stages, components)
    print(f"  report             {usual_path(index)}   (open it in a browser)")


def read_components(mixture: Mixture, context_length: int) -> list[Component]:
    """What a mixture draws of each cache while it draws as many rows as all have together.

    Raises:
        CacheError: a cache cannot be opened.
        ConfigError: a cache is shorter than one row.
    """
    source = open_batches(mixture, context_length, bos_id=None)
    num_rows = sum(component.rows.num_rows for component in source.components)
    if source.order.num_samples is not None:
        num_rows = min(num_rows, source.order.num_samples)
    components = []
    for component, use in zip(source.components, source.use(num_rows), strict=True):
        share = use.epochs * use.num_rows / num_rows
        cache = component.cache
        components.append(Component(component.name, cache.num_documents, len(cache), share, use.epochs))
    return components


def read_stage(name: str, path: str) -> Stage:
    """The counts of the document set at `path`.

    Raises:
        DataError: there is no finished set, or its report is damaged.
    """
    opened = DocumentSet.open(path)
    where = files.join(path, REPORT)
    if not files.exists(where):  # a bare file of documents, which no stage reports on
        return Stage(
            name, "documents", opened.num_documents, opened.num_documents, 0, opened.num_bytes, opened.num_bytes, ()
        )
    report = files.read_json(where)
    try:
        counts, size = report["documents"], report["bytes"]
        dropped = tuple(
            (str(reason), int(entry["documents"]), tuple(map(str, entry["examples"])))
            for reason, entry in report["dropped"].items()
        )
        return Stage(
            name,
            str(report["stage"]),
            counts["in"],
            counts["kept"],
            counts["changed"],
            size["in"],
            size["kept"],
            dropped,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{where} is no report of a stage ({error!r}): run the step that writes it again") from None


def render(title: str, stages: list[Stage], components: list[Component]) -> str:
    """The page; it opens from disk."""
    return pages.static_page(
        "data_report.html.j2",
        style="data_report.css",
        title=title,
        stages=stages,
        components=components,
        most=max((stage.bytes_in for stage in stages), default=1) or 1,
        tokens=sum(component.tokens for component in components),
    )


def _print_table(stages: list[Stage], components: list[Component]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("stage", "documents in", "kept", "dropped", "text kept", "most frequent reasons", title="Documents")
    for stage in stages:
        reasons = ", ".join(f"{reason} {number:,}" for reason, number, _ in stage.dropped[:3])
        counts = (stage.documents_in, stage.documents_kept, stage.documents_dropped)
        table.add_row(stage.name, *(f"{count:,}" for count in counts), wording.text_size(stage.bytes_kept), reasons)
    for column in table.columns[1:5]:
        column.justify = "right"
    console.print(table)
    tokens = Table(
        "component",
        "documents",
        "tokens",
        "of the mixture",
        "epochs",
        title="Tokens, and what one pass of the mixture draws",
    )
    for part in components:
        share = f"{100 * part.share:.1f} %"
        tokens.add_row(part.name, f"{part.documents:,}", f"{part.tokens:,}", share, f"{part.epochs:.2f}")
    for column in tokens.columns[1:]:
        column.justify = "right"
    console.print(tokens)
