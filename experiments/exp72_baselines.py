"""FineWeb-Edu, tokenized: the data of the speedrun contest."""

from experiments.speedrun.prebuilt_caches import fineweb_edu_subcache_10B, fineweb_edu_subcache_10M

fineweb_edu_tokenized = fineweb_edu_subcache_10B

__all__ = ["fineweb_edu_subcache_10B", "fineweb_edu_subcache_10M", "fineweb_edu_tokenized"]
