"""Nearest training images: those of the masked model vote, as scikit-learn lets them vote."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

import mhprobe
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.pruning.rounds import Judge, Selection
from mhprobe.scoring.base import looked, score_for
from mhprobe.scoring.knn_train import KNNTrain
from mhprobe.scoring.parts.evaluate import Evaluator
from mhprobe.scoring.parts.tally import tally
from models import images_for, labels_for, make_loud, tiny_vit
from pruned import shown

TRAIN, TEST = 60, 33
MASKS = torch.cat([torch.zeros(1, 6, dtype=torch.bool), torch.eye(6, dtype=torch.bool)])


@pytest.fixture(scope="module")
def model():
    model = tiny_vit(num_classes=0)
    make_loud(model, 0.2)
    mhprobe.attach(model)
    return model


def split(model, count, seed):
    return images_for(model, count, seed), labels_for(count, seed)


def walk(images, labels, size=7):
    """Batches, each with one image that does not count."""
    for index in torch.arange(len(images)).split(size):
        index = torch.cat([index, index[:1]])
        yield Batch(images[index], labels[index], index, torch.arange(len(index)) < len(index) - 1)


def expected(model, mask, train, test, of=None):
    """scikit-learn's answers: right (n,) and the share of votes for other labels.

    of: the mask over training images.
    """
    gates, features = mhprobe.attach(model), []
    with torch.no_grad():
        for (images, _), off in ((train, mask if of is None else of), (test, mask)):
            before = gates.values.clone()
            gates.values[off] = 0
            features.append(
                torch.stack([model(image[None])[0] for image in images]).double().numpy()
            )
            gates.values.copy_(before)

    def weigh(distance):
        return np.exp((1 - distance) / 0.07)

    judge = KNeighborsClassifier(20, weights=weigh, metric="cosine", algorithm="brute").fit(
        features[0], train[1].numpy()
    )
    shares = judge.predict_proba(features[1])
    label = test[1].numpy()
    share = [
        row[list(judge.classes_).index(true)] if true in judge.classes_ else 0.0
        for row, true in zip(shares, label, strict=True)
    ]
    return torch.from_numpy(judge.predict(features[1]) == label), 1 - torch.tensor(
        share, dtype=torch.float64
    )


def test_training_images_of_the_masked_model_vote(model):
    train, test = split(model, TRAIN, 1), split(model, TEST, 2)
    score = looked(KNNTrain, model, lambda: walk(*test), TEST, (lambda: walk(*train), TRAIN))
    scores = Evaluator(model, lambda: walk(*test), TEST, score=score)(MASKS)
    wanted = [expected(model, mask, train, test) for mask in MASKS]
    assert torch.equal(scores.right, torch.stack([right for right, _ in wanted]))
    losses = torch.stack([loss for _, loss in wanted])
    torch.testing.assert_close(
        scores.losses, losses, rtol=1e-4, atol=1e-5
    )  # float32 cosines, divided by .07
    # negative control: training images of the unmasked model would vote otherwise
    other = torch.stack([expected(model, mask, train, test, of=MASKS[0])[1] for mask in MASKS[1:]])
    assert (other - losses[1:]).abs().max() > 1e-2


def test_a_smaller_model_is_judged_among_its_own_training_images(model):
    train, test = split(model, TRAIN, 1), split(model, TEST, 2)
    score = looked(KNNTrain, model, lambda: walk(*test), TEST, (lambda: walk(*train), TRAIN))
    small = mhprobe.prune_heads(copy.deepcopy(model), MASKS[2])
    mhprobe.attach(small)
    result = tally(small.eval(), walk(*test), TEST, score=score)
    right, loss = expected(model, MASKS[2], train, test)
    assert torch.equal(result["right"], right)
    assert float(result["loss"]) == pytest.approx(float(loss.mean()), abs=1e-4)


def test_an_image_of_the_bank_is_judged_by_the_others(model):
    train = split(model, TRAIN, 1)
    chosen = torch.tensor([3, 50, 7, 21])
    some = train[0][chosen], train[1][chosen]
    score = looked(KNNTrain, model, lambda: walk(*some), len(chosen), (lambda: walk(*train), TRAIN))
    score.places = chosen
    scores = Evaluator(model, lambda: walk(*some), len(chosen), score=score)(MASKS[:2])
    for number, place in enumerate(chosen.tolist()):
        others, itself = (
            [part[keep] for part in train]
            for keep in (torch.arange(TRAIN) != place, torch.arange(TRAIN) == place)
        )
        wanted = [expected(model, mask, others, itself) for mask in MASKS[:2]]
        assert torch.equal(scores.right[:, number], torch.cat([right for right, _ in wanted]))
        losses = torch.cat([loss for _, loss in wanted])
        torch.testing.assert_close(scores.losses[:, number], losses, rtol=1e-4, atol=1e-5)
    score.places = None  # negative control: it would be its own nearest
    assert (
        Evaluator(model, lambda: walk(*some), 4, score=score)(MASKS[:2]).losses < scores.losses
    ).all()


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_images_that_choose_a_pruning_do_not_vote_for_themselves(name):
    _, _, judge = shown({"head"})
    known = judge.selection
    judge = Judge(Selection(known.data, known.device, name, look_at=30), KNNTrain)
    judge.show(tiny_vit())
    places = judge.scores["chosen"].places
    assert (places is judge.selection.chosen) if name == "train" else (places is None)
    assert judge.scores["test"].places is None


def test_a_bank_that_is_too_small_is_refused():
    judged = {"where": "score", "labelled": True, "features": True, "images": TEST}
    with pytest.raises(
        UserError, match=r"^score=knn_train: compares with at least 21 training images, got 20\. "
    ):
        score_for("knn_train", **judged, bank=20)
    assert score_for("knn_train", **judged, bank=21) is KNNTrain
