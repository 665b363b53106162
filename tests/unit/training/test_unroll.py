"""The unrolled loss and the simulated drafts equal what one row at a time gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forerun.training.evaluation import DraftShape, accepted_lengths, measure
from forerun.training.head import Head
from forerun.training.methods import METHODS
from forerun.training.unroll import Example, loss, unroll
from tests.fixtures.head_chains import Chain, Layer
from tests.fixtures.training import corpus, examples, plain, random_head, target, vocabulary


def _prefilled(method: str, head: Head, example: Example, row: int) -> tuple[Layer, Tensor]:
    """A chain that has taken the target's rows up to `row`, and the last output."""
    chain = plain(method, head)
    output = torch.empty(0)
    for t in range(row + 1):
        taps = example.taps[t]
        hidden = chain.fuse(taps) if isinstance(chain, Chain) else taps.flatten()
        output = chain.push(example.embeddings[t + 1], hidden)
    return chain, output


def _taught(method: str, chain: Layer, output: Tensor) -> Tensor:
    """Log probabilities of the tokens that are taught, among these alone."""
    scores = chain.log_probabilities(output)
    return scores if method == "eagle3" else scores[vocabulary().target_ids].log_softmax(0)


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def example(method: str, tmp_path_factory: pytest.TempPathFactory) -> Example:
    made = corpus(tmp_path_factory.mktemp("corpus"), prompts=4)
    return min(examples(made, method), key=lambda e: abs(e.num_rows - 7) + e.first / 100)


def test_outputs_equal_chains_of_single_rows(method: str, example: Example) -> None:
    head = random_head(method)
    for step, outputs in enumerate(unroll(head, [example], 2)):
        for i, output in enumerate(outputs[0]):
            row = example.first + i
            chain, expected = _prefilled(method, head, example, row)
            if step:
                expected = chain.push(example.embeddings[row + 2], expected)
            assert torch.allclose(output, expected, atol=1e-4, rtol=1e-4)
            scores = head.scores(output).log_softmax(-1)
            assert torch.allclose(scores, chain.log_probabilities(expected), atol=1e-4)


def test_loss_equals_chains_of_single_rows(method: str, example: Example) -> None:
    head, steps, decay = random_head(method), 3, 0.85
    expected, hits = 0.0, [0] * steps
    for row in range(example.first, example.first + example.num_rows):
        chain, output = _prefilled(method, head, example, row)
        for step in range(steps):
            if row + 2 + step >= len(example.labels):
                break
            if step:
                output = chain.push(example.embeddings[row + 1 + step], output)
            label = int(example.labels[row + 2 + step])
            if label >= 0:
                scores = _taught(method, chain, output)
                teacher = example.teacher[row + 1 + step - example.first]
                expected -= head.token_weight * decay**step * float(teacher @ scores)
                hits[step] += int(scores.argmax()) == label
            if head.feature_weight:
                missing = (output - example.final[row + 1 + step - example.first]).abs()
                miss = torch.where(missing < 1, missing**2 / 2, missing - 0.5).mean()
                expected += head.feature_weight * decay**step * float(miss)

    total, by_step = loss(head, [example], steps, decay)

    assert float(total.detach()) == pytest.approx(expected, rel=1e-5)
    assert by_step.tolist() == hits


def _cut(example: Example, rows: int) -> Example:
    """Its first rows."""
    end = example.first + rows + 2
    return replace(
        example,
        **{
            name: getattr(example, name)[:end]
            for name in ("embeddings", "taps", "token_ids", "labels")
        },
    )


def test_documents_of_a_pack_see_nothing_of_each_other(method: str, tmp_path: Path) -> None:
    head = random_head(method)
    packed = [e for e in examples(corpus(tmp_path, prompts=12), method) if e.num_rows > 0]
    ends = (2, 3, 12)  # A chain of the first cannot take three steps.
    packed = [_cut(example, end) for example, end in zip(packed, ends, strict=False)]
    alone = [loss(head, [example], 3, 0.85) for example in packed]
    total, by_step = loss(head, packed, 3, 0.85)
    expected = sum(float(part.detach()) for part, _ in alone)
    assert float(total.detach()) == pytest.approx(expected, rel=1e-5)
    assert by_step.tolist() == torch.stack([hits for _, hits in alone]).sum(0).tolist()


def test_teacher_is_the_targets_distribution_over_the_draft_vocabulary(
    method: str, tmp_path: Path
) -> None:
    from tests.fixtures.reference import logits
    from tests.fixtures.training import checkpoint

    made = corpus(tmp_path, prompts=1)
    (document,), (example,) = made.documents, examples(made, method)
    scores = torch.from_numpy(logits(checkpoint(), document.token_ids.tolist()))
    expected = scores[example.first :, vocabulary().target_ids].softmax(-1)
    # The engine's states are bfloat16, the reference's float32.
    assert float((example.teacher - expected).abs().sum(-1).mean()) < 0.1


def _with_likely_labels(head: Head, example: Example) -> Example:
    """The example as if the document were what the head finds likeliest, or second or third."""
    output = next(unroll(head, [example], 1))[0]
    likely = head.vocabulary.target_ids[head.scores(output).topk(3).indices]
    token_ids = example.token_ids.clone()
    for i in range(example.num_rows):
        token_ids[example.first + 2 + i] = likely[i, i % 3]
    return replace(example, token_ids=token_ids)


@pytest.mark.parametrize("shape", [DraftShape(3, 1, 3), DraftShape(5, 3, 3), DraftShape(30, 2, 3)])
def test_accepted_lengths_equal_those_of_single_trees(
    method: str, example: Example, shape: DraftShape
) -> None:
    head = random_head(method, seed=1)
    example = _with_likely_labels(head, example)
    embeddings = target().embedding[head.vocabulary.target_ids].float()
    expected = []
    for row in range(example.first, example.first + example.num_rows):
        chain, output = _prefilled(method, head, example, row)
        labels = head.vocabulary.draft_ids(example.token_ids[row + 2 :]).tolist()
        expected.append(_accepted(chain, output, labels, embeddings, shape))

    assert any(expected), "a test in which nothing is accepted shows nothing"
    assert accepted_lengths(head, example, embeddings, shape).tolist() == expected


def test_measure_walks_rounds(method: str, example: Example) -> None:
    head = random_head(method, seed=1)
    example = _with_likely_labels(head, example)
    embeddings = target().embedding[head.vocabulary.target_ids].float()
    shape = DraftShape(2, 2, 2)
    accepted = accepted_lengths(head, example, embeddings, shape).tolist()
    assert 0 in accepted and any(accepted)

    measured = measure(head, [example, example], embeddings, shape)

    rounds, row = [], 0
    while row < len(accepted):
        rounds.append(accepted[row])
        row += accepted[row] + 1
    assert measured.rounds == 2 * len(rounds)
    assert measured.mean == pytest.approx(sum(rounds) / len(rounds))
    assert measured.by_depth == [2 * sum(r > d for r in rounds) for d in range(max(rounds))]


def _accepted(
    chain: Layer, output: Tensor, labels: list[int], embeddings: Tensor, shape: DraftShape
) -> int:
    """Grows one tree level by level, keeps the likeliest nodes, and follows the document."""
    beam = [(0.0, chain, output, ())]
    nodes: list[tuple[float, tuple[int, ...]]] = []
    for _ in range(shape.depth):
        level = []
        for score, parent, parent_output, path in beam:
            best = parent.log_probabilities(parent_output).topk(shape.breadth)
            for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                level.append((score + value, parent, parent_output, (*path, token)))
        level.sort(key=lambda node: -node[0])
        nodes += [(score, path) for score, _, _, path in level]
        beam = []
        for score, parent, parent_output, path in level[: shape.breadth]:
            grown = parent.copy()
            out = grown.push(embeddings[path[-1]], parent_output)
            beam.append((score, grown, out, path))
    nodes.sort(key=lambda node: -node[0])
    kept = {path for _, path in nodes[: shape.nodes]}
    accepted = 0
    while tuple(labels[: accepted + 1]) in kept and accepted < len(labels):
        accepted += 1
    return accepted
