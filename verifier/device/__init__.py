"""The batched verifier on a device: torch references and Triton kernels."""
