"""What was measured of a run after its log was closed, and the last link of the run's hash chain, which binds it.

No line of the log can hold it. Results therefore carry one link more, over the head of the log's chain, the digest of the evaluation
set and the canonical bytes of all that was measured: what they take from `evaluation.json`, and the counts of CORE's tasks. The bytes
can be made from that file and from the results alike, so that an edit of either is found, also where only one of them is handed in.
"""

import dataclasses
import json
from typing import Any

from marin.errors import ResultsError
from marin.speedrun.results import Compressors, Core, Evaluation, RunInfo, Validity
from marin.tracking import log_chain

EVALUATION_FILE = "evaluation.json"


@dataclasses.dataclass(frozen=True)
class EvaluationRecord:
    """The four parts of `evaluation.json` and CORE's counts; results carry them under the same names."""

    evaluation: Evaluation | None = None
    validity: Validity | None = None
    compressors: Compressors | None = None
    sample: str | None = None
    core: Core | None = None

    @staticmethod
    def parse(content: Any, name: str) -> "EvaluationRecord":
        """The record that an `evaluation.json` holds; `name` is only named in errors.

        Raises:
            ResultsError: if a part is missing or not what the evaluation step writes.
        """
        try:
            validity = content.get("validity")  # null where the model was not probed
            sample = content["sample"]
            if not isinstance(sample, str):
                raise TypeError(f"`sample` is {str(sample)[:40]!r}, expected a text")
            return EvaluationRecord(
                Evaluation(**content["evaluation"]),
                None if validity is None else Validity(**validity),
                Compressors(**content["compressors"]),
                sample,
            )
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{name} cannot be read ({error}): run the evaluation step again") from None

    @staticmethod
    def of(info: RunInfo) -> "EvaluationRecord":
        """The record as results state it."""
        return EvaluationRecord(info.evaluation, info.validity, info.compressors, info.sample, info.core)

    def parts(self) -> dict[str, Any]:
        """Each part as a JSON value without nulls; a part that is unknown is absent."""
        blocks = {
            "evaluation": self.evaluation,
            "validity": self.validity,
            "compressors": self.compressors,
            "core": self.core,
        }
        found: dict[str, Any] = {
            name: block.model_dump(exclude_none=True) for name, block in blocks.items() if block is not None
        }
        return found if self.sample is None else found | {"sample": self.sample}

    def link(self, log_head: str) -> str:
        """The chain's last link.

        Args:
            log_head: the head of the chain after the log's last line.
        """
        canonical = json.dumps(self.parts(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        digest = None if self.evaluation is None else self.evaluation.digest
        return log_chain.evaluation_link(log_head, digest, canonical.encode())
