"""What the adapter to SGLang declares about itself."""

from .engine_support import CONTRACT, TREE, EngineSupport

SUPPORT = EngineSupport(
    name="SGLang",
    package="sglang",
    version="0.5.23",
    how="`--speculative-algorithm FREEDRAFT`",
    shape=TREE,
    families="all but those that need the model's layers",
    sampling="what the engine's NGRAM has: all but LoRA, DP attention and mixed chunks",
    evidence=CONTRACT,
    tested_on="the real package and its Triton kernels in the interpreter, no GPU",
    page="sglang.md",
    plugin_group="sglang.srt.plugins",
)
