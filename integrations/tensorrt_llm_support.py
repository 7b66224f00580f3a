"""What the adapter to TensorRT-LLM declares about itself."""

from .engine_support import CHAIN, CONTRACT, EngineSupport

SUPPORT = EngineSupport(
    name="TensorRT-LLM",
    package="tensorrt_llm",
    version="five generations of its drafter",
    how="`LLM(speculative_config=create_decoding_config(...))`",
    shape=CHAIN,
    families="all but those that need the model's layers",
    sampling="what the engine's user-provided drafters have; no state-space models",
    evidence=CONTRACT,
    tested_on="recorded signatures, 10,000 simulated steps; never run on the engine",
    page="tensorrt-llm.md",
)
