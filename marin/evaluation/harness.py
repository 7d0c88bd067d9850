"""A model of ours for EleutherAI's `lm-eval` (extra `eval`): its tasks, its prompts and its metrics, our batched scoring.

    results = lm_eval.simple_evaluate(HarnessModel(loaded.model, loaded.tokenizer, max_length=2048), tasks=["piqa"])

The harness hands over all requests of a kind at once. Those with one context are scored together, and everything is sorted by
length and batched by `marin.evaluation.likelihood`, so that batches are full whatever order the harness asks in. Texts begin with
the token that begins documents, as in training.
"""

from collections.abc import Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError, DataError
from marin.evaluation.likelihood import Group, LikelihoodScorer
from marin.inference.engine import Engine
from marin.inference.options import SamplingOptions
from marin.nn.precision import Precision

# Continuations of one context that are scored side by side; more only make more programs.
_MOST_TOGETHER = 16
_GENERATED_AT_ONCE = 16
_MAX_NEW_TOKENS = 256


class HarnessModel(TemplateLM):
    """Answers the harness's three kinds of request.

    Args:
        max_length: the longest sequence; longer ones lose their beginning.
        begin_documents: put the token that begins documents before each context.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        precision: Precision | None = None,
        begin_documents: bool = True,
    ) -> None:
        super().__init__()
        if max_length < 2:
            raise ConfigError(f"`max_length` is {max_length}: use at least 2")
        self._model, self._text, self._precision = model, tokenizer, precision
        self._scorer = LikelihoodScorer(model, precision=precision)
        self.max_length = max_length
        self._begin_documents = begin_documents

    @property
    def eot_token_id(self) -> int:
        return self._text.bos_id

    @property
    def tokenizer_name(self) -> str:
        return self._text.digest[:16]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        begin = self._begin_documents if add_special_tokens is None else add_special_tokens
        return [*([self._text.bos_id] if begin else []), *self._text.encode(string)]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, in windows that meet and do not overlap."""
        sequences, owners = [], []
        for number, request in enumerate(requests):
            windows = get_rolling_token_windows(
                token_list=self._text.encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for context, continuation in map(make_disjoint_window, windows):
                sequences.append((None, context, continuation))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, (log_likelihood, _) in zip(owners, self._loglikelihood_tokens(sequences), strict=True):
            totals[owner] += log_likelihood
        return totals

    def _loglikelihood_tokens(self, requests: Sequence[Any], **kwargs: Any) -> list[tuple[float, bool]]:
        by_context: dict[tuple[int, ...], list[int]] = {}
        for number, (_, context, _) in enumerate(requests):
            by_context.setdefault(tuple(context), []).append(number)
        members = [
            numbers[first : first + _MOST_TOGETHER]
            for numbers in by_context.values()
            for first in range(0, len(numbers), _MOST_TOGETHER)
        ]
        groups = [self._group([requests[number][1:] for number in numbers]) for numbers in members]
        results: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for group, scored in self._scorer.score(groups):
            for number, row in zip(members[group], scored, strict=True):
                results[number] = -row.total_nats, row.greedy
        return results

    def _group(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Group:
        sequences, starts = [], []
        for context, continuation in pairs:
            # The last token is only predicted, so that one more than the context fits.
            cut = max(0, len(context) + len(continuation) - self.max_length - 1)
            if cut >= len(context) or not continuation:
                raise DataError(
                    f"a request has {len(continuation):,} tokens to score after {len(context):,}, and {self.max_length:,} are the most"
                    " together: use a larger `--max-length`, or another task"
                )
            sequences.append([*context, *continuation][cut:])
            starts.append(len(context) - cut)
        return Group.of(sequences, starts)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continuations up to the first of the request's stop strings, those of one kind of request in full batches."""
        by_options: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            by_options.setdefault(repr(sorted(request.args[1].items())), []).append(number)
        texts = [""] * len(requests)
        for numbers in by_options.values():
            asked = requests[numbers[0]].args[1]
            stops = _stops(asked.get("until"))
            max_tokens = int(asked.get("max_gen_toks", min(_MAX_NEW_TOKENS, self.max_length // 2)))
            if max_tokens >= self.max_length:
                raise DataError(
                    f"the task writes up to {max_tokens:,} tokens (`max_gen_toks`), and the context of {self.max_length:,} leaves none for its"
                    " prompt: use a larger `--max-length`, or another task"
                )
            prompts = [
                self.tok_encode(requests[number].args[0])[-(self.max_length - max_tokens) :] for number in numbers
            ]
            rows = min(_GENERATED_AT_ONCE, len(prompts))
            engine = Engine(
                self._model,
                self._text,
                max_length=self.max_length,
                max_rows=rows,
                precision=self._precision,
                tools=False,
            )
            options = _options(asked, max_tokens)
            each = [options.of_prompt(number) for number in numbers]
            for number, (sample,) in zip(numbers, engine.generate(prompts, each), strict=True):
                texts[number] = _cut(self._text.decode(sample.tokens), stops)
        return texts


def _stops(until: Any) -> list[str]:
    return [until] if isinstance(until, str) else [stop for stop in until or () if stop]


def _cut(text: str, stops: Sequence[str]) -> str:
    ends = [place for place in map(text.find, stops) if place >= 0]
    return text[: min(ends, default=len(text))]


def _options(asked: dict[str, Any], max_tokens: int) -> SamplingOptions:
    """What the harness's generation settings mean: greedy unless `do_sample` or a temperature says otherwise."""
    temperature = float(asked.get("temperature") or 0.0)
    if asked.get("do_sample") is True and temperature == 0.0:
        temperature = 1.0
    if asked.get("do_sample") is False:
        temperature = 0.0
    top_k = asked.get("top_k")
    return SamplingOptions(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=int(top_k) if top_k else None,
        top_p=float(asked.get("top_p") or 1.0),
    )
