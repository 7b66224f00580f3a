"""What the integration with transformers declares about itself."""

from .engine_support import RUN, TREE, EngineSupport

SUPPORT = EngineSupport(
    name="transformers",
    package="transformers",
    version="5.24",
    how="`freedraft.generate`, `custom_generate`",
    shape=TREE,
    families="all",
    sampling="all that `generate` has, but beams",
    evidence=RUN,
    tested_on="tiny models in float64, SmolLM2-135M, on CPUs",
    page="generate.md",
)
