"""The same model, prompts and threads through forerun and its peers: `make compare`."""
