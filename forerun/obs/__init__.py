"""What a person sees of a running process: log lines and progress on standard error."""
