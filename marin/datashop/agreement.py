"""How far two annotators agree on the documents that both have labelled.

Labels are whole numbers on one scale, so two annotators are fully told by a table of counts, and each figure is a function of
it. Cohen's kappa is agreement beyond what their label frequencies would give by chance (Cohen 1960); the weighted one counts a
disagreement by the square of its distance (Cohen 1968), as 4 against 5 is less than 0 against 5. Spearman's correlation
ranks equal labels at their mean. Intervals are percentiles of a bootstrap over documents, which is a multinomial draw of the
table; they are seeded.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from marin.data.formats import BadRow, rows_of_json_lines
from marin.datashop.labels import LABELS, read_scale, read_summary
from marin.datashop.quality import Estimate
from marin.datashop.resampling import interval_of
from marin.errors import DataError
from marin.execution.step import ExecutorStep, Input, InputName, this_output_path
from marin.storage import files

AGREEMENT = "agreement.json"
_RESAMPLES = 1000
Pair = Mapping[str, float | None]


@dataclass(frozen=True)
class Agreement:
    """Args:
    num_documents: that both have labelled.
    num_one_sided: that only one of them has labelled.
    values: the labels of rows and columns.
    table: counts; rows are the first annotator's labels, columns the second's.
    exact: the fraction of documents with equal labels.
    kappa, weighted_kappa, spearman: not defined where an annotator gave only one label.
    """

    num_documents: int
    num_one_sided: int
    values: tuple[int, ...]
    table: tuple[tuple[int, ...], ...]
    exact: Estimate
    kappa: Estimate
    weighted_kappa: Estimate
    spearman: Estimate

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        """A few lines for a person."""
        return (
            f"{self.num_documents:,} documents labelled by both ({self.num_one_sided:,} by one of them only)\n"
            f"  equal labels      {self.exact}\n"
            f"  kappa             {self.kappa}\n"
            f"  weighted kappa    {self.weighted_kappa}\n"
            f"  Spearman          {self.spearman}"
        )


def read_labels(folder: str) -> dict[str, float | None]:
    """The labels in an annotation's folder, by the id of the document.

    Raises:
        DataError: there are none, a row is damaged, or a document has two labels.
    """
    path = files.join(folder, LABELS)
    found: dict[str, float | None] = {}
    for row in rows_of_json_lines(path):
        fields = {} if isinstance(row, BadRow) else row.fields
        name, label = fields.get("id"), fields.get("label")
        if not isinstance(name, str) or isinstance(label, bool) or not isinstance(label, int | float | None):
            raise DataError(f"{path}:{row.number} is no label of a document: label the sample again")
        if name in found:
            raise DataError(f"{path} has two labels for document {name!r}: give each document an id of its own")
        found[name] = label
    return found


def compare_annotations(first: str, second: str, *, seed: int = 0) -> Agreement:
    """The agreement of the annotations in two folders.

    Raises:
        DataError: they are on different scales, or have no document in common.
    """
    scales = read_scale(first), read_scale(second)
    if scales[0] != scales[1]:
        raise DataError(f"{first} has labels on the scale {scales[0]}, {second} on {scales[1]}: compare like with like")
    return measure_agreement(read_labels(first), read_labels(second), scale=scales[0], seed=seed)


@dataclass(frozen=True)
class AgreementConfig:
    """Args:
    first, second: folders of two annotations of one sample.
    """

    first: Input
    second: Input
    seed: int = 0
    output_path: str = this_output_path()


def agreement_step(name: str, first: ExecutorStep | InputName, second: ExecutorStep | InputName) -> ExecutorStep:
    """The step `agreement/{name}`, with the file `agreement.json`."""
    config = AgreementConfig(first, second)
    return ExecutorStep(
        name=f"agreement/{name}", fn=write_agreement, config=config, description="how far two annotators agree"
    )


def write_agreement(config: AgreementConfig) -> None:
    """Compares two annotations, prints the result and writes it down.

    Raises:
        DataError: see `compare_annotations`.
    """
    found = compare_annotations(str(config.first), str(config.second), seed=config.seed)
    costs = [read_summary(str(folder)).get("cost_dollars") for folder in (config.first, config.second)]
    files.write_json(files.join(config.output_path, AGREEMENT), found.to_json() | {"cost_dollars": costs})
    print(found.summary(), flush=True)


def measure_agreement(labels_a: Pair, labels_b: Pair, *, scale: tuple[float, float], seed: int = 0) -> Agreement:
    """The agreement of two annotators.

    Args:
        labels_a, labels_b: labels by the document's id, None for a document without one.
    Raises:
        DataError: no document has a label of both.
    """
    both = [name for name, label in labels_a.items() if label is not None and labels_b.get(name) is not None]
    either = {name for labels in (labels_a, labels_b) for name, label in labels.items() if label is not None}
    if not both:
        raise DataError(
            f"no document has a label of both annotators: read their answers in {LABELS}, and let both label one sample"
        )
    values = np.arange(int(np.floor(scale[0])), int(np.ceil(scale[1])) + 1)
    size = len(values)
    places = [
        np.rint(np.array([labels[name] for name in both], np.float64)).astype(np.int64) - values[0]
        for labels in (labels_a, labels_b)
    ]
    for place in places:
        if place.min() < 0 or place.max() >= size:
            raise DataError(f"a label is off the scale from {scale[0]:g} to {scale[1]:g}: read the labels again")
    table_KK = np.bincount(places[0] * size + places[1], minlength=size * size).reshape(size, size)
    drawn = np.random.default_rng(seed).multinomial(len(both), table_KK.ravel() / len(both), size=_RESAMPLES)
    tables_RKK = np.concatenate([table_KK[None], drawn.reshape(-1, size, size)]).astype(np.float64)
    distance_KK = (values[:, None] - values[None, :]).astype(np.float64)
    return Agreement(
        num_documents=len(both),
        num_one_sided=len(either) - len(both),
        values=tuple(values.tolist()),
        table=tuple(tuple(row) for row in table_KK.tolist()),
        exact=_estimate(np.trace(tables_RKK, axis1=1, axis2=2) / len(both)),
        kappa=_estimate(_kappa(tables_RKK, (distance_KK != 0).astype(np.float64))),
        weighted_kappa=_estimate(_kappa(tables_RKK, distance_KK**2)),
        spearman=_estimate(_spearman(tables_RKK)),
    )


def _kappa(
    tables_RKK: Float64[np.ndarray, "R K K"], weight_KK: Float64[np.ndarray, "K K"]
) -> Float64[np.ndarray, " R"]:
    """One less the disagreement over that of chance, each weighted."""
    rows_RK, columns_RK = tables_RKK.sum(axis=2), tables_RKK.sum(axis=1)
    size_R = tables_RKK.sum(axis=(1, 2))
    chance_RKK = rows_RK[:, :, None] * columns_RK[:, None, :] / size_R[:, None, None]
    found_R, expected_R = (tables_RKK * weight_KK).sum(axis=(1, 2)), (chance_RKK * weight_KK).sum(axis=(1, 2))
    ratio_R = np.divide(found_R, expected_R, out=np.full_like(found_R, np.nan), where=expected_R > 0)
    return 1.0 - ratio_R


def _spearman(tables_RKK: Float64[np.ndarray, "R K K"]) -> Float64[np.ndarray, " R"]:
    """Pearson's correlation of mean ranks, over the cells of the table."""
    size_R = tables_RKK.sum(axis=(1, 2))
    centred = []
    for counts_RK in (tables_RKK.sum(axis=2), tables_RKK.sum(axis=1)):
        ranks_RK = np.cumsum(counts_RK, axis=1) - counts_RK / 2
        centred.append((ranks_RK - (size_R / 2)[:, None], counts_RK))
    (a_RK, rows_RK), (b_RK, columns_RK) = centred
    above_R = np.einsum("rij,ri,rj->r", tables_RKK, a_RK, b_RK)
    below_R = np.sqrt((rows_RK * a_RK**2).sum(axis=1) * (columns_RK * b_RK**2).sum(axis=1))
    return np.divide(above_R, below_R, out=np.full_like(above_R, np.nan), where=below_R > 0)


def _estimate(figures_R: Float64[np.ndarray, " R"]) -> Estimate:
    """The first figure is the table's own, the others are of resamples."""
    if np.isnan(figures_R[0]):
        return Estimate(None, None, None)
    low, high = interval_of(figures_R[1:]) or (None, None)
    return Estimate(float(figures_R[0]), low, high)
