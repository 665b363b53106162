"""Owns the prompts that are measured where none are given: short ones, of many kinds.

Some answers repeat much of their prompt (copying, editing, summing up), most do not.
"""

from __future__ import annotations

LETTER = (
    "Dear neighbours, on Saturday the water in our street will be turned off from nine in the "
    "morning until two in the afternoon, because the old pipes are going to be replaced. Please "
    "fill a few bottles on Friday evening. The workers will park their cars in front of the "
    "school. If you have questions, call the office of the waterworks before Thursday."
)
TABLE = (
    "name,city,age\nAnna,Oslo,31\nBoris,Riga,45\nChen,Turin,28\nDalia,Porto,39\nEmil,Graz,52\n"
    "Fatima,Lyon,34"
)
CODE = (
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n"
    "    return total / len(values)"
)

PROMPTS = (
    "Why is the sky blue? Explain it to a child of ten years.",
    f"Correct the spelling of this letter and repeat all of it:\n\n{LETTER}",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    f"Write a docstring for this function and repeat the whole function:\n\n{CODE}",
    "Give me a recipe for a vegetable soup for four people, with amounts and steps.",
    f"Turn this table into a list, one sentence for each person:\n\n{TABLE}",
    "What are the advantages and disadvantages of working from home?",
    f"Summarise this letter in three sentences:\n\n{LETTER}",
    "A train leaves at 14:20 and arrives at 17:05. It stops four times for five minutes each. How "
    "long does it move? Explain every step.",
    "Write a Python function that returns the longest word of a text, and explain it.",
    "Plan a day in Lisbon for a family with two children, hour by hour.",
    f"Translate this letter into French:\n\n{LETTER}",
    "Explain the difference between a virus and a bacterium.",
    "Write an e-mail to a customer whose parcel was lost, and apologise.",
    f"Repeat this table with the people sorted by age:\n\n{TABLE}",
    "Tell me how a bicycle stays upright while it moves.",
)
