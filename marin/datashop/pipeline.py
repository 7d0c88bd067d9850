"""From one config to the steps of a whole datashop run.

    pool -> sample -> (prompt ->) labels -> classifier -> scores -> filtered -> selection
                                                           |
                     deduplicated -> decontaminated -> tokenizer -> tokenized -> card
                                                           |
                                                       ablation

`datashop_steps(config)` gives the steps by name, in order, without making anything; those that a config does not ask for are
not there. Each is an ordinary step: it runs once for its settings, goes on where it was killed, and can be used by other
experiments. The report stands above this package, in `marin.site.datashop_report`, and is one more step of
`marin datashop run`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from marin.data.cache import TokenizeConfig, tokenize
from marin.data.deduplication.exact import ExactDocumentsConfig, dedup_exact_documents
from marin.data.deduplication.fuzzy import FuzzyConfig, dedup_fuzzy_documents
from marin.data.filters.decontamination import DecontaminateConfig, decontaminate
from marin.data.filters.scores import FilterByScoreConfig, filter_by_score
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.datashop.ablation import ablation_step
from marin.datashop.agreement import AgreementConfig, write_agreement
from marin.datashop.annotate import annotate
from marin.datashop.annotate_config import AnnotateConfig
from marin.datashop.card import CardConfig, write_card
from marin.datashop.classifier import train_classifier
from marin.datashop.config import AblationConfig, DatashopRunnerConfig
from marin.datashop.medu import PROMPT_FILE, medu_config, write_medu_prompt
from marin.datashop.sampling import (
    DrawConfig,
    ExampleLabelsConfig,
    ExamplesConfig,
    PoolConfig,
    draw_documents,
    draw_examples,
    label_examples,
    make_pool,
)
from marin.datashop.scoring import ScoreConfig, score_documents
from marin.datashop.selection import SelectionConfig, look_at_selection
from marin.errors import ConfigError
from marin.execution.step import ExecutorStep, Input, InputName
from marin.resources import Resources, TpuPodConfig

__all__ = ["AblationConfig", "DatashopRunnerConfig", "datashop_steps", "last_documents"]

_LABELLER_STAGES = ("prompt", "labels", "second_labels", "classifier", "scores")
_DOCUMENT_STAGES = ("pool", "filtered", "deduplicated", "decontaminated")


def datashop_steps(config: DatashopRunnerConfig) -> dict[str, ExecutorStep]:
    """The steps of a run by name, in the order of the module's docstring.

    Raises:
        ConfigError: a stage's settings cannot work.
    """
    steps: dict[str, ExecutorStep] = {}
    made = _Maker(config, steps)
    made.pool()
    made.sample_and_labels()
    made.classifier_and_scores()
    made.documents()
    made.cache()
    made.card()
    made.ablation()
    return steps


def document_stages(steps: Mapping[str, ExecutorStep]) -> dict[str, ExecutorStep]:
    """Of a run's steps those that write document sets, each made of the one before."""
    return {name: steps[name] for name in _DOCUMENT_STAGES if name in steps}


def last_documents(steps: Mapping[str, ExecutorStep]) -> ExecutorStep:
    """The step that writes the finished documents."""
    return list(document_stages(steps).values())[-1]


@dataclasses.dataclass
class _Maker:
    """Adds the steps, stage after stage."""

    config: DatashopRunnerConfig
    steps: dict[str, ExecutorStep]

    def pool(self) -> None:
        given = self.config.pretraining_data_path
        if isinstance(given, ExecutorStep):  # a document set already
            self.steps["pool"] = given
        else:
            self._add("pool", make_pool, self._pool_config(given, "pool"), "the documents to choose from")

    def sample_and_labels(self) -> None:
        config = self.config
        if config.positives:
            examples = ExamplesConfig(
                pool=self.steps["pool"],
                positives=config.positives,
                negatives=config.negatives,
                negatives_per_positive=config.negatives_per_positive,
                seed=config.seed,
                text_key=config.text_key,
                id_key=config.id_key,
                on_bad_row=config.on_bad_row,
                num_workers=config.num_workers,
            )
            sample = self._add("sample", draw_examples, examples, "examples, and what the pool gives beside them")
            self._add("labels", label_examples, ExampleLabelsConfig(sample), "labels of the examples")
            return
        drawn_from = self._annotated_documents()
        draw = DrawConfig(drawn_from, config.sample_size, config.seed, num_workers=config.num_workers)
        self._add("sample", draw_documents, draw, "the documents to label")
        self._add_annotation()

    def _annotated_documents(self) -> ExecutorStep:
        given = self.config.annotator_data_path
        if given is None:
            return self.steps["pool"]
        if isinstance(given, ExecutorStep):
            return given
        name = "annotator_data"
        return self._add(name, make_pool, self._pool_config(given, name), "the documents to draw the sample from")

    def _add_annotation(self) -> None:
        config = self.config
        asked: dict[str, Any] = {
            "model": config.annotator_model_name,
            "endpoint": config.endpoint,
            "api_key_env": config.api_key_env,
            "concurrency": config.concurrency,
            **config.text_generation_inference_config_kwargs,
        }
        grading = {"sample": self.steps["sample"], **asked, **config.dataset_output_processor_config_kwargs}
        if config.corpus_content_paths:
            medu = medu_config(config.corpus_content_paths, asked, text_key=config.text_key)
            prompt = self._add("prompt", write_medu_prompt, medu, "a grading prompt from a target corpus")
            grading = {"processor_type": "medu", **grading, "prompt_path": prompt / PROMPT_FILE}
        else:
            grading["prompt"] = config.data_filter_prompt
        self._add("labels", annotate, _made(AnnotateConfig, grading), f"grades by {config.annotator_model_name}")
        if config.second_annotator_model_name is not None:
            second = _made(AnnotateConfig, grading | {"model": config.second_annotator_model_name})
            labels = self._add("second_labels", annotate, second, f"grades by {config.second_annotator_model_name}")
            agreement = AgreementConfig(self.steps["labels"], labels, config.seed)
            self._add("agreement", write_agreement, agreement, "how far the two annotators agree")

    def classifier_and_scores(self) -> None:
        config = self.config
        classifier = _changed(
            config.classifier,
            {
                "sample": self.steps["sample"],
                "labels": self.steps["labels"],
                "seed": config.seed,
                **config.hf_training_config_kwargs,
            },
        )
        self._add("classifier", train_classifier, classifier, f"a classifier of kind {classifier.kind}")
        scores = ScoreConfig(self.steps["pool"], self.steps["classifier"], num_workers=config.num_workers)
        self._add("scores", score_documents, scores, "a score for each document of the pool")

    def documents(self) -> None:
        config = self.config
        threshold, keep_fraction = config.limits
        kept = FilterByScoreConfig(
            self.steps["pool"], self.steps["scores"], threshold, keep_fraction, num_workers=config.num_workers
        )
        filtered = self._add("filtered", filter_by_score, kept, "the documents with a high score")
        selection = SelectionConfig(
            self.steps["pool"],
            self.steps["scores"],
            filtered,
            self.steps["sample"],
            planted_sources=config.planted_sources,
            seed=config.seed,
        )
        self._add("selection", look_at_selection, selection, "kept and dropped documents to look at")
        if config.deduplicate == "exact":
            exact = ExactDocumentsConfig(filtered, num_workers=config.num_workers)
            self._add("deduplicated", dedup_exact_documents, exact, "without repeated documents")
        elif config.deduplicate == "fuzzy":
            fuzzy = FuzzyConfig(filtered, num_workers=config.num_workers)
            self._add(
                "deduplicated", dedup_fuzzy_documents, fuzzy, "without documents nearly the same as an earlier one"
            )
        if config.eval_sets:
            clean = DecontaminateConfig(last_documents(self.steps), config.eval_sets, num_workers=config.num_workers)
            self._add("decontaminated", decontaminate, clean, "without documents that overlap with evaluation sets")

    def cache(self) -> None:
        documents = last_documents(self.steps)
        tokenizer: Input | None = self.config.tokenizer
        if tokenizer is None:
            trained = TrainTokenizerConfig(self.steps["pool"], self.config.vocab_size)
            tokenizer = self._add(
                "tokenizer", train_tokenizer, trained, f"a byte-level BPE of {self.config.vocab_size:,}"
            )
        cache = TokenizeConfig(documents, tokenizer, num_workers=self.config.num_workers)
        self._add("tokenized", tokenize, cache, "the documents as a token cache")

    def card(self) -> None:
        card = CardConfig(
            name=self.config.experiment_name,
            wish=_wish(self.config),
            stages=document_stages(self.steps),
            sample=self.steps["sample"],
            labels=self.steps["labels"],
            classifier=self.steps["classifier"],
            scores=self.steps["scores"],
            cache=self.steps["tokenized"],
            contamination=self.steps.get("decontaminated"),
        )
        self._add("card", write_card, card, "the dataset to publish, with its card")

    def ablation(self) -> None:
        asked = self.config.ablation
        if asked is None:
            return
        asked = _changed(asked, self.config.quality_train_config_kwargs)
        self.steps["ablation"] = ablation_step(
            self.config.experiment_name,
            last_documents(self.steps),
            self.steps["pool"],
            tokenizer=self.config.tokenizer or self.steps["tokenizer"],
            tokens=asked.tokens,
            seeds=asked.seeds,
            eval_set=asked.eval_set,
            kept_weight=asked.kept_weight,
            recipe=asked.recipe,
            resources=self._training_resources(),
        )

    def _training_resources(self) -> Resources | None:
        config = self.config
        if config.eval_resource_config is not None or config.training_tpu_type is None:
            return config.eval_resource_config
        return TpuPodConfig(config.training_tpu_type)

    def _pool_config(self, given: Input | tuple[Input, ...], name: str) -> PoolConfig:
        paths = given if isinstance(given, tuple | list) else (given,)
        return PoolConfig(
            paths=tuple(paths),
            source_name=name,
            text_key=self.config.text_key,
            id_key=self.config.id_key,
            on_bad_row=self.config.on_bad_row,
            shard_bytes=self.config.shard_bytes,
            num_workers=self.config.num_workers,
        )

    @property
    def _folder(self) -> str:
        return f"datashop/{self.config.experiment_name}"

    def _add(self, name: str, function: Any, config: Any, description: str) -> ExecutorStep:
        resources = self.config.labeler_resource_config if name in _LABELLER_STAGES else None
        self.steps[name] = ExecutorStep(
            name=f"{self._folder}/{name}", fn=function, config=config, description=description, resources=resources
        )
        return self.steps[name]


def _changed(config: Any, changes: Mapping[str, Any]) -> Any:
    """The config with some fields changed.

    Raises:
        ConfigError: it has no such field.
    """
    _check_fields(type(config), changes)
    return dataclasses.replace(config, **changes)


def _made(kind: Any, settings: Mapping[str, Any]) -> Any:
    """As `_changed`, for a config that is made of the settings alone."""
    _check_fields(kind, settings)
    return kind(**settings)


def _check_fields(kind: Any, given: Mapping[str, Any]) -> None:
    known = {field.name for field in dataclasses.fields(kind)}
    if unknown := sorted(set(given) - known):
        raise ConfigError(
            f"{kind.__name__} has no field {unknown[0]!r}: its fields are {', '.join(sorted(known - {'output_path'}))}"
        )


def _wish(config: DatashopRunnerConfig) -> dict[str, Any]:
    """What was asked for, in words that a card can show."""
    if config.positives:
        return {"examples of what is wanted": [_name(path) for path in config.positives]} | (
            {"examples of what is not": [_name(path) for path in config.negatives]} if config.negatives else {}
        )
    if config.corpus_content_paths:
        return {"a target corpus": [_name(path) for path in config.corpus_content_paths]}
    return {"model": config.annotator_model_name, "prompt": config.data_filter_prompt or ""}


def _name(path: Input) -> str:
    """A path as a card names it: a step by its name, a file by its own name, without the folders of the machine."""
    if isinstance(path, ExecutorStep):
        return path.name
    if isinstance(path, InputName):
        return f"{path.step.name if path.step else ''}/{path.name or ''}".strip("/")
    return path.rstrip("/").rsplit("/", 1)[-1]
