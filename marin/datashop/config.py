"""What a person says of a datashop run: one dataclass, from which `pipeline.datashop_steps` makes the steps.

What is wanted is said in one of three ways: examples (`positives`), a prompt with `{example}` (`data_filter_prompt`), or a
target corpus from which a prompt is written (`corpus_content_paths`). The field names that the public datashop has are kept;
`*_kwargs` are fields of the stage's own config by name.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from marin.data.formats import OnBadRow
from marin.data.shards import SHARD_BYTES
from marin.data.tokenizer import MIN_VOCAB_SIZE
from marin.datashop.annotate_config import check_prompt
from marin.datashop.classifier import TrainClassifierConfig
from marin.datashop.grading import scale_of
from marin.datashop.labels import EXAMPLES_SCALE
from marin.datashop.ngrams import NgramConfig
from marin.errors import ConfigError
from marin.execution.step import Input, placement
from marin.number_checks import check_whole
from marin.resources import Resources

# What only a language model that labels has a use for.
_OF_A_MODEL = (
    "annotator_data_path",
    "second_annotator_model_name",
    "text_generation_inference_config_kwargs",
    "dataset_output_processor_config_kwargs",
)


@dataclasses.dataclass(frozen=True)
class AblationConfig:
    """How the filtered dataset is compared with the pool: two models, trained on equal tokens.

    Args:
        eval_set: documents that stand in no part of the pool and are close to what is wanted; or several such sets by name.
        tokens: that each arm trains on.
        seeds: a pair of models for each.
        kept_weight: the share of the filtered arm's tokens that comes from what was kept; the rest comes from the pool.
        recipe: an `AblationModel` of `marin.datashop.ablation`; None is the smallest one.
    """

    eval_set: Input | Mapping[str, Input]
    tokens: int = 500_000
    seeds: tuple[int, ...] = (0, 1, 2)
    kept_weight: float = 1.0
    recipe: Any = None

    def __post_init__(self) -> None:
        if self.tokens < 1 or not self.seeds:
            raise ConfigError(
                f"config fields `tokens` is {self.tokens} and `seeds` is {self.seeds}: use at least one of each"
            )


@dataclasses.dataclass(frozen=True)
class DatashopRunnerConfig:
    """Args:
    experiment_name: names the outputs, `datashop/{experiment_name}/{stage}`.
    pretraining_data_path: the pool: a document set, or files, folders and patterns that `import_step` reads.
    annotator_data_path: where the annotation sample is drawn from; None is the pool.
    annotator_model_name: the model that grades, as the endpoint names it.
    data_filter_prompt: what is wanted, as a prompt with `{example}`.
    corpus_content_paths: what is wanted, as texts from which a prompt is written (MEDU).
    labeler_resource_config, eval_resource_config: what labelling and the ablation run on.
    training_tpu_type: what the ablation runs on, as the public datashop names it, such as "v6e-8".
    text_generation_inference_config_kwargs: fields of `AnnotateConfig`: `temperature`, `max_tokens`, `budget_dollars` and so on.
    dataset_output_processor_config_kwargs: `{"processor_type": "finalscore0-5"}` or "medu".
    hf_training_config_kwargs: fields of `classifier` to change.
    filter_config_kwargs: `threshold` or `keep_fraction`, as the public datashop gives them.
    quality_train_config_kwargs: fields of `ablation` to change.

    positives: what is wanted, as example documents: files, folders or a document set.
    negatives: what is not, likewise; none are drawn from the pool.
    negatives_per_positive: how many documents of the pool stand in for what is not wanted, for each positive.
    sample_size: documents to label by a prompt.
    second_annotator_model_name: another model that grades the same sample: the report says how far the two agree.
    classifier: what learns the labels and scores the pool.
    threshold, keep_fraction: which documents are kept: those that score at least this, or the best fraction.
    eval_sets: contamination is reported against these, and overlapping documents are dropped: files, folders or document sets.
    deduplicate: "exact", "fuzzy" or "none".
    planted_sources: documents of the pool from these sources are known to be wanted: the report says how many were found.
    vocab_size: of the byte-level BPE that is trained on the pool for the token cache.
    tokenizer: to use instead of one that is trained.
    shard_bytes: of text in a shard of the pool; stages work on shards in parallel.
    ablation: None trains no models.
    text_key, id_key, on_bad_row: how the files of the pool are read; see `marin.data.sources`.
    seed: of the sample, the split and the classifier.
    endpoint: base URL of an OpenAI-compatible server; None is what OPENAI_BASE_URL of the environment says.
    api_key_env: the environment variable with its key.
    concurrency: requests in flight.
    num_workers: processes for every stage; 0 is one a processor.
    """

    experiment_name: str
    pretraining_data_path: Input | tuple[Input, ...]
    annotator_data_path: Input | tuple[Input, ...] | None = None
    annotator_model_name: str = "meta-llama/Llama-3.3-70B-Instruct"
    data_filter_prompt: str | None = None
    corpus_content_paths: tuple[Input, ...] = ()
    labeler_resource_config: Resources | None = placement(default=None)
    training_tpu_type: str | None = placement(default=None)
    eval_resource_config: Resources | None = placement(default=None)
    text_generation_inference_config_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dataset_output_processor_config_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    hf_training_config_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    filter_config_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    quality_train_config_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    positives: tuple[Input, ...] = ()
    negatives: tuple[Input, ...] = ()
    negatives_per_positive: float = 5.0
    sample_size: int = 2000
    second_annotator_model_name: str | None = None
    classifier: TrainClassifierConfig = dataclasses.field(default_factory=NgramConfig)
    threshold: float | None = None
    keep_fraction: float | None = None
    eval_sets: Mapping[str, Input] = dataclasses.field(default_factory=dict)
    deduplicate: str = "exact"
    planted_sources: tuple[str, ...] = ()
    shard_bytes: int = SHARD_BYTES
    vocab_size: int = 8192
    tokenizer: Input | None = None
    ablation: AblationConfig | None = None
    text_key: str = "text"
    id_key: str | None = None
    on_bad_row: OnBadRow = "refuse"
    seed: int = 0
    endpoint: str | None = placement(default=None)
    api_key_env: str = placement(default="OPENAI_API_KEY")
    concurrency: int = placement(default=64)
    num_workers: int = placement(default=0)

    def __post_init__(self) -> None:
        for name in ("positives", "negatives", "corpus_content_paths", "planted_sources"):
            if not isinstance(getattr(self, name), tuple | list):
                given = getattr(self, name)
                raise ConfigError(f"config field `{name}` is {given!r}: give a list, such as [{given!r}]")
        self._check_wish()
        self._check_filter()
        if self.deduplicate not in ("exact", "fuzzy", "none"):
            raise ConfigError(f'config field `deduplicate` is {self.deduplicate!r}: use "exact", "fuzzy" or "none"')
        for name, least in (("sample_size", 1), ("concurrency", 1), ("vocab_size", MIN_VOCAB_SIZE), ("seed", 0)):
            check_whole(f"config field `{name}`", getattr(self, name), least)
        if self.quality_train_config_kwargs and self.ablation is None:
            raise ConfigError(
                "config field `quality_train_config_kwargs` changes fields of `ablation`, which is not set: give"
                " `ablation=AblationConfig(...)`, or leave it out"
            )
        if not self.negatives_per_positive > 0:
            raise ConfigError(
                f"config field `negatives_per_positive` is {self.negatives_per_positive}: use a number above 0, such as 5"
            )

    def _check_wish(self) -> None:
        said = {
            "positives": bool(self.positives),
            "data_filter_prompt": self.data_filter_prompt is not None,
            "corpus_content_paths": bool(self.corpus_content_paths),
        }
        given = [name for name, is_given in said.items() if is_given]
        if len(given) != 1:
            raise ConfigError(
                f"config fields {' and '.join(given) or 'positives, data_filter_prompt and corpus_content_paths'} "
                f"{'are all set' if given else 'are all empty'}: say what is wanted in exactly one of the three ways"
            )
        if self.negatives and not self.positives:
            raise ConfigError(
                "config field `negatives` is set without `positives`: give examples of what is wanted too"
            )
        for name in _OF_A_MODEL if self.positives else ():
            if getattr(self, name):
                raise ConfigError(
                    f"config field `{name}` is set, but `positives` are labels already: use a prompt, or leave it out"
                )
        if self.data_filter_prompt is not None:
            check_prompt(self.data_filter_prompt, "config field `data_filter_prompt`")

    def _check_filter(self) -> None:
        unknown = sorted(set(self.filter_config_kwargs) - {"threshold", "keep_fraction"})
        if unknown:
            raise ConfigError(f"config field `filter_config_kwargs` has {unknown[0]!r}: use threshold or keep_fraction")
        threshold, keep_fraction = self.limits
        if threshold is not None and keep_fraction is not None:
            raise ConfigError(
                f"config fields `threshold` is {threshold} and `keep_fraction` is {keep_fraction}: set at most one of them"
            )
        for name, limit, other in (
            ("threshold", threshold, "keep_fraction"),
            ("keep_fraction", keep_fraction, "threshold"),
        ):
            if limit is not None and not isinstance(limit, int | float):
                raise ConfigError(f"config field `{name}` is {limit!r}: use a number, or None with `{other}`")
        low, high = self.label_scale
        if threshold is not None and not low < threshold <= high:
            raise ConfigError(
                f"config field `threshold` is {threshold:g}, but scores are on the labels' scale: use one above {low:g} and at "
                f"most {high:g}"
            )

    @property
    def label_scale(self) -> tuple[float, float]:
        """The lowest and the highest label that this way of saying what is wanted can give; scores are on that scale.

        Raises:
            ConfigError: `dataset_output_processor_config_kwargs` names no known processor.
        """
        if self.positives:
            return EXAMPLES_SCALE
        usual = "medu" if self.corpus_content_paths else "finalscore0-5"
        return scale_of(self.dataset_output_processor_config_kwargs.get("processor_type", usual))

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """Threshold and kept fraction, exactly one of them not None: without either the best tenth is kept."""
        threshold = self.filter_config_kwargs.get("threshold", self.threshold)
        keep_fraction = self.filter_config_kwargs.get("keep_fraction", self.keep_fraction)
        if threshold is None and keep_fraction is None:
            return None, 0.1
        return threshold, keep_fraction
