"""Exact greedy LLM serving on CPUs by speculative decoding, as a draft and a verify server."""

__version__ = "0.1.0"
