"""Generated messages and stubs of the protocol, version 1 (`scripts/generate_stubs.py`)."""
