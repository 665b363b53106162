"""Owns plain-Python references of the operations of `forerun.ops`, on lists of ints.

Trees are lists of parents here (parents[0] == -1), so none of the layouts under test is reused.
"""

from __future__ import annotations


def depths(parents: list[int]) -> list[int]:
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent == -1 else found[parent] + 1)
    return found


def ancestors(parents: list[int], node: int) -> list[int]:
    """The node, its parent, ... up to the root."""
    return [node] if parents[node] == -1 else [node, *ancestors(parents, parents[node])]


def children(parents: list[int], node: int) -> list[int]:
    return [child for child, parent in enumerate(parents) if parent == node]


def links(parents: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of each node, -1 for none."""
    first = [min(children(parents, node), default=-1) for node in range(len(parents))]
    siblings = [
        min((s for s in children(parents, parent) if s > node), default=-1) if node else -1
        for node, parent in enumerate(parents)
    ]
    return first, siblings


def mask(parents: list[int]) -> list[list[bool]]:
    nodes = range(len(parents))
    return [[seen in ancestors(parents, node) for seen in nodes] for node in nodes]


def verify(parents: list[int], tokens: list[int], target: list[int]) -> list[int]:
    """The accepted nodes, the root first."""
    path = [0]
    while True:
        hits = [c for c in children(parents, path[-1]) if tokens[c] == target[path[-1]]]
        if not hits:
            return path
        path.append(hits[0])


def candidate_parents(parent_list: list[int], selected: list[int], topk: int) -> list[int]:
    """Parents of the nodes that EAGLE's selected candidates become."""
    parents = [-1]
    for candidate in selected:
        group = candidate // topk
        parents.append(0 if group == 0 else 1 + selected.index(parent_list[group]))
    return parents


def scatter_rows(
    table: list[list[int]], rows: list[int], spans: list[tuple[int, int]], slots: list[int]
) -> list[list[int]]:
    written = [list(row) for row in table]
    left = list(slots)
    for row, (start, end) in zip(rows, spans, strict=True):
        for column in range(start, end):
            written[row][column] = left.pop(0)
    return written


def gather_rows(table: list[list[int]], rows: list[int], spans: list[tuple[int, int]]) -> list[int]:
    return [
        slot
        for row, (start, end) in zip(rows, spans, strict=True)
        for slot in table[row][start:end]
    ]


def expand_rows(
    table: list[list[int]], rows: list[int], seq_lens: list[int], topk: int, num_steps: int
) -> list[list[int]]:
    """One row a branch: prefix, the branch's own slots, zeros."""
    expanded = []
    for row, seq_len in zip(rows, seq_lens, strict=True):
        for branch in range(topk):
            start = seq_len + branch * num_steps
            slots = table[row][:seq_len] + table[row][start : start + num_steps]
            expanded.append(slots + [0] * (len(table[row]) - len(slots)))
    return expanded


def move_slots(pool: list[int], target: list[int], source: list[int]) -> list[int]:
    moved = list(pool)
    for to, slot in zip(target, source, strict=True):
        moved[to] = pool[slot]
    return moved
