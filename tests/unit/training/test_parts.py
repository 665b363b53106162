"""The small parts of training: the draft vocabulary, the optimiser, the order of documents."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forerun.training.optimisation import OptimiserSettings, orthogonalised
from forerun.training.order import Order
from forerun.training.vocabulary import DraftVocabulary


def test_a_draft_vocabulary_holds_the_most_frequent_tokens() -> None:
    answers = [np.asarray(ids, dtype=np.int32) for ids in ([7, 7, 7, 2], [5, 2, 9])]
    kept = DraftVocabulary.most_frequent(answers, 4, 12)
    # 7 three times, 2 twice, 5 and 9 once: the rest have no say.
    assert kept.target_ids.tolist() == [2, 5, 7, 9]
    assert kept.d2t.tolist() == [2, 4, 5, 6]
    assert kept.t2d(14).nonzero()[:, 0].tolist() == [2, 5, 7, 9]
    assert kept.draft_ids(torch.tensor([9, 3, 2])).tolist() == [3, -1, 0]
    assert DraftVocabulary.most_frequent(answers, 6, 12).target_ids.tolist() == [0, 1, 2, 5, 7, 9]


def test_a_draft_vocabulary_keeps_given_tokens_and_can_be_reduced() -> None:
    answers = [np.asarray(ids, dtype=np.int32) for ids in ([7, 7, 7, 2], [5, 2, 9])]
    kept = DraftVocabulary.most_frequent(answers, 4, 12, kept=[11, 5])
    assert kept.target_ids.tolist() == [2, 5, 7, 11]
    assert kept.reduced(answers, 2).target_ids.tolist() == [2, 7]
    assert kept.reduced(answers, 9).target_ids.tolist() == kept.target_ids.tolist()


def test_a_draft_vocabulary_is_no_larger_than_the_targets() -> None:
    with pytest.raises(ValueError, match="the draft vocabulary is 13; it must be 1 to 12"):
        DraftVocabulary.most_frequent([], 13, 12)


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (16, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    result = orthogonalised(1000 * matrix)
    values = torch.linalg.svdvals(result)
    assert 0.3 < float(values.min()) and float(values.max()) < 1.3
    # Its directions are those of the nearest orthogonal matrix.
    nearest = left @ right
    cosine = (result * nearest).sum() / (result.norm() * nearest.norm())
    assert float(cosine) > 0.95


def test_rates_rise_then_fall_to_zero() -> None:
    settings = OptimiserSettings(warm_up=0.1)
    factors = [settings.factor(progress) for progress in (0.0, 0.05, 0.1, 0.55, 1.0)]
    assert factors == pytest.approx([0.05, 0.5, 1.0, 0.5, 0.0])


def test_a_pass_gives_each_document_once_in_an_order_of_its_own() -> None:
    order = Order(seed=1)
    assert order.pass_ended
    passes = []
    for _ in range(2):
        order.begin_pass(20)
        passes.append([order.take() for _ in range(20)])
        assert order.pass_ended
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(20))
    assert passes[0] != passes[1] != list(range(20))


def test_what_was_never_seen_comes_before_another_pass_over_all() -> None:
    order = Order(seed=0)
    order.begin_pass(5)
    taken = [order.take() for _ in range(5)]
    order.begin_pass(8)
    taken += [order.take() for _ in range(3)]
    assert sorted(taken) == list(range(8))
    order.begin_pass(8)
    assert sorted(order.take() for _ in range(8)) == list(range(8))


def test_an_order_goes_on_from_what_was_kept_of_it() -> None:
    order = Order(seed=3)
    order.begin_pass(9)
    for _ in range(4):
        order.take()
    kept = Order(**order.to_json())
    assert [kept.take() for _ in range(5)] == [order.take() for _ in range(5)]
