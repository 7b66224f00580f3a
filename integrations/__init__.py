"""The loops around the verifier, an adapter an engine, and what they share."""
