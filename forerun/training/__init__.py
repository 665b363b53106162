"""Training of drafting heads by self-distillation: the target writes the data and is the teacher.

Needs the extra `torch`; no other room imports this one but the command line, and only once its
command was typed.
"""
