"""Is a grading prompt any good? Two prompts for one question grade the same documents, and are compared.

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 python -m experiments.datashop.prompt_quality --prefix local_store

Both ask how well a page teaches programming: one adds up points, the other asks for one judgement. Where a model grades by
what the page says, the two agree (weighted kappa above 0.6 as a rule of thumb); where they do not, read the answers in
`labels.jsonl` before you trust either. The sample is 200 docstrings of the embedded corpus, and BUDGET_TOKENS is what each prompt
may cost at most. Answers are kept: a second run, or one with another `processor_type`, costs nothing.

MARIN_ANNOTATOR names the model. To compare two models instead of two prompts, give both annotations one prompt and each its
own `model`.
"""

import os

from experiments.python_docs import python_docs
from marin.datashop.agreement import agreement_step
from marin.datashop.annotate import AnnotateConfig, annotate_step
from marin.datashop.balance import balance_step
from marin.datashop.sampling import draw_documents_step
from marin.execution import executor_main

MODEL = os.environ.get("MARIN_ANNOTATOR", "meta-llama/Llama-3.1-8B-Instruct")
BUDGET_TOKENS = 1_000_000  # for each prompt

POINTS = """\
Judge how well the page below would teach programming to somebody who learns it.

--- page ---
{example}
--- end of page ---

Give one point for each that is true:
- it is about programming, mathematics or a tool for either;
- it explains something, and does not only list names;
- a learner could follow it with what stands on the page;
- it shows an example with its result, or leads through steps;
- it is complete, correct as far as you can tell, and worth keeping in a textbook.

Say in at most 60 words why. End with one line: Final Score: followed by the number of points, 0 to 5.
"""

JUDGEMENT = """\
Imagine that you choose texts for a course on programming.

--- text ---
{example}
--- end of text ---

How much would a student learn from this text? 0 is nothing, 3 is as much as from an average page of documentation, and 5 is as
much as from the best textbook. Give your reason in at most 60 words. End with one line: Final Score: followed by the number.
"""

sample = draw_documents_step("datashop/prompt_quality/sample", python_docs / "train.jsonl.zst", 200)
points, judgement = (
    annotate_step(
        f"prompt_quality/{name}",
        AnnotateConfig(sample=sample, prompt=prompt, model=MODEL, max_example_chars=8000, budget_tokens=BUDGET_TOKENS),
    )
    for name, prompt in (("points", POINTS), ("judgement", JUDGEMENT))
)
agreement = agreement_step("prompt_quality", points, judgement)
balanced = balance_step("prompt_quality", sample, points)

if __name__ == "__main__":
    executor_main(steps=[agreement, balanced], description="Two grading prompts, compared on one sample.")
