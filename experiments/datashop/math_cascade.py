"""Educational mathematics, found by a prompt and a cascade: a language model grades a sample, n-grams drop what is plainly none,
an encoder judges the rest, and an ablation asks whether models learn more from what is kept.

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 MARIN_ANNOTATOR=meta-llama/Llama-3.1-8B-Instruct \
        marin datashop run experiments/datashop/math_cascade.py --prefix local_store

The pool is the embedded corpus. 1,000 documents are graded, about 900 tokens each, and never more than the budget. Without
MARIN_ENCODER, a local folder of BERT, RoBERTa or GTE weights, the encoder is pretrained on the pool by masked prediction, and
all that comes of it says "CPU size, no evidence about BERT". On two cores everything but the grading takes about 20 minutes.
"""

import os

from experiments.datashop.graph_docs import POOL
from experiments.python_docs import python_docs
from marin.data.filters.by_source import keep_sources_step
from marin.datashop.cascade import CascadeConfig
from marin.datashop.encoder import EncoderConfig
from marin.datashop.masked import pretrain_encoder_step
from marin.datashop.pipeline import AblationConfig, DatashopRunnerConfig
from marin.site.datashop_report import datashop_main

PROMPT = """\
How useful is the text below for somebody who learns mathematics, at school or in the first years of a university?

--- text ---
{example}
--- end of text ---

Begin with 0 points, and add one for each that is true:
- it has mathematics in it at all;
- mathematics is what it is about, however badly or drily it is written;
- it solves a problem or argues in steps that one could check;
- its level is right for such learners, and it says what its symbols mean;
- it teaches: a learner could work through it alone and would come out knowing more.

Say in at most 60 words why. End with one line: Final Score: followed by the number of points, 0 to 5.
"""

# With published weights as the public pipeline has them; else what a processor pretrains in minutes.
published = os.environ.get("MARIN_ENCODER")
if published:
    dear = EncoderConfig(encoder=published)
else:
    small = pretrain_encoder_step("datashop/math_cascade/encoder", POOL, hidden_dim=128, num_layers=3, max_tokens=128)
    dear = EncoderConfig(encoder=small, pooling="mean", max_tokens=128, batch_size=32, learning_rate=3e-4, num_epochs=8)

config = DatashopRunnerConfig(
    experiment_name="math_cascade",
    pretraining_data_path=POOL,
    annotator_model_name=os.environ.get("MARIN_ANNOTATOR", "meta-llama/Llama-3.1-8B-Instruct"),
    data_filter_prompt=PROMPT,
    dataset_output_processor_config_kwargs={"processor_type": "finalscore0-5"},
    text_generation_inference_config_kwargs={"max_example_chars": 6000, "budget_tokens": 2_000_000},
    sample_size=1000,
    classifier=CascadeConfig(dear=dear, held_out_fraction=0.2),
    threshold=2.5,
    vocab_size=4096,
    ablation=AblationConfig(
        eval_set=keep_sources_step("math_cascade/heldout", python_docs / "heldout.jsonl.zst", ("sympy", "mpmath"))
    ),
)

if __name__ == "__main__":
    datashop_main(config)
