"""The loop around the verifier, one module an engine."""
