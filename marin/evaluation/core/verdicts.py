"""What is kept of each item of CORE, and whether the model got it right.

A record has `item` (its number), `prompt` (a digest of its text) and `correct`. Where the model chose: `gold`, `answer`, and
`scores`, the mean nats a token of each choice, null for one without a token of its own. Where it continued: `nats` and `tokens`.
"""

import math
from collections.abc import Sequence

from marin.evaluation.core.prompts import Question
from marin.evaluation.likelihood import Scored
from marin.evaluation.records import Record


def verdict(question: Question, scored: Sequence[Scored]) -> Record:
    """What is kept of an item, and whether the model got it right.

    Of choices the one with the least mean loss is the answer, the first of several. A choice with which all others begin has no
    token of its own and so no mean: it is the answer if it stands first, and never otherwise, which is what nanochat's comparison
    of NaN amounts to.
    """
    record: Record = {"item": question.number, "prompt": question.digest}
    if question.gold is None:
        (only,) = scored
        return record | {"nats": only.mean_nats, "tokens": len(only.nats), "correct": only.greedy}
    scores = [choice.mean_nats for choice in scored]
    defined = [math.inf if math.isnan(score) else score for score in scores]
    answer = 0 if math.isnan(scores[0]) else defined.index(min(defined))
    return record | {
        "gold": question.gold,
        "answer": answer,
        "scores": [None if math.isnan(score) else score for score in scores],
        "correct": answer == question.gold,
    }


def is_undefined(record: Record) -> bool:
    return None in record.get("scores", ())
