"""What the adapter to llama-cpp-python declares about itself."""

from .engine_support import CHAIN, RUN, EngineSupport

SUPPORT = EngineSupport(
    name="llama-cpp-python",
    package="llama-cpp-python",
    version="0.3.36",
    how="`attach(llama)`",
    shape=CHAIN,
    families="all but those that need the model's layers",
    sampling="all",
    evidence=RUN,
    tested_on="SmolLM2-135M, Q4_1 and float32, on a CPU",
    page="llama-cpp.md",
    module="llama_cpp",
)
