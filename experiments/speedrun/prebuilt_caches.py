"""Token caches that are ready on the Hugging Face hub; fetching one is a step."""

from experiments.marin_models import marin_tokenizer
from marin.data.pretokenized import download_pretokenized_cache

fineweb_edu_subcache_10B = download_pretokenized_cache(
    "fineweb-edu-10B", "marin-community/fineweb-edu-pretokenized-10B", marin_tokenizer
)
fineweb_edu_subcache_10M = download_pretokenized_cache(
    "fineweb-edu-10M", "marin-community/fineweb-edu-pretokenized-10M", marin_tokenizer
)
