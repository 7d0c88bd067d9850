"""Filters by rule: the first rule that a document breaks drops it, and its name is the reason that is recorded.

A rule is a function of the text that gives None, or what breaks it in a few words. Rules see the text as the edits
before them left it. The rules of C4 and Gopher are in `c4` and `gopher`; an experiment can write its own:

    def too_short(text: str) -> str | None:
        return f"{len(text)} characters" if len(text) < 100 else None

    RULES = (*gopher.quality_rules(), Rule("too short", too_short))

A rule's name and its settings identify it; what its function does is part of the step's identity as all code is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from marin.data.documents import Document, Dropped
from marin.data.shards import transform_shards
from marin.errors import ConfigError
from marin.execution.step import ExecutorStep, Input, placement, this_output_path


@dataclass(frozen=True)
class Rule:
    """Args:
    name: the reason that is recorded for a document that breaks it.
    broken_by: what breaks the rule in this text; None if nothing does.
    settings: keyword arguments of `broken_by`, such as limits.
    source: where the rule and its limits are published.
    """

    name: str
    broken_by: Callable[..., str | None]
    settings: dict[str, Any] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class Edit:
    """Changes the text before the rules that follow it, such as removing lines.

    Args:
        name: for the record.
        apply: the changed text. A document of which nothing remains is dropped with the edit's name as the reason.
        settings: keyword arguments of `apply`.
        source: where it is published.
    """

    name: str
    apply: Callable[..., str]
    settings: dict[str, Any] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class FilterByRulesConfig:
    """Args:
    documents: a document set.
    rules: applied in order.
    num_workers: processes; 0 is one a processor.
    """

    marin_resumable: ClassVar[bool] = True

    documents: Input
    rules: tuple[Rule | Edit, ...]
    output_path: str = this_output_path()
    num_workers: int = placement(default=0)

    def __post_init__(self) -> None:
        names = [rule.name for rule in self.rules]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated or not names:
            raise ConfigError(
                f"config field `rules` has {'two rules named ' + repr(repeated[0]) if repeated else 'no rules'}: "
                f"give each rule a name of its own, as the reports count by it"
            )


def filter_by_rules_step(name: str, documents: Input, rules: tuple[Rule | Edit, ...]) -> ExecutorStep:
    """The step `filtered/{name}`: the documents that break no rule."""
    return ExecutorStep(
        name=f"filtered/{name}",
        fn=filter_by_rules,
        config=FilterByRulesConfig(documents, rules),
        description=f"documents that break none of {len(rules)} rules",
    )


def filter_by_rules(config: FilterByRulesConfig) -> None:
    """Writes the documents that break no rule.

    Raises:
        DataError: the documents cannot be read, or a rule fails; the message names the document.
    """
    transform_shards(
        str(config.documents),
        config.output_path,
        lambda index, documents: (applied(config.rules, document) for document in documents),
        stage="filter_by_rules",
        settings={"rules": [{"name": rule.name, **rule.settings, "source": rule.source} for rule in config.rules]},
        num_workers=config.num_workers,
    )


def applied(rules: tuple[Rule | Edit, ...], document: Document) -> Document | Dropped:
    """What the rules make of one document."""
    text = document.text
    for rule in rules:
        if isinstance(rule, Edit):
            before, text = text, rule.apply(text, **rule.settings)
            if not text.strip() and before.strip():
                return Dropped(document.id, rule.name, "nothing remains")
        else:
            found = rule.broken_by(text, **rule.settings)
            if found is not None:
                return Dropped(document.id, rule.name, found)
    return document if text is document.text else Document(document.id, text, document.source)
