"""What the adapter to vLLM declares about itself."""

from .engine_support import CHAIN, RUN, EngineSupport

SUPPORT = EngineSupport(
    name="vLLM",
    package="vllm",
    version="0.32.0",
    how="one flag, `--speculative-config`",
    shape=CHAIN,
    families="all but those that need the model's layers",
    sampling="all that vLLM allows with speculation: no `min_p`, `logit_bias`, custom processors",
    evidence=RUN,
    tested_on="SmolLM2-135M in float32 on a CPU; signatures of 0.22 to 0.33",
    page="vllm.md",
    plugin_group="vllm.general_plugins",
)
