"""Drafting methods, one file each. They know models and trees, and nothing of gRPC."""
