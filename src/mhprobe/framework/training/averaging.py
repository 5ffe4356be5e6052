"""An average of the weights over training steps. Imported only where one is asked for: older Lightning has none."""

from lightning.pytorch.callbacks import Callback, WeightAveraging


class Average(WeightAveraging):
    """Lightning's average of the weights, at which others look, too; it stays if a run goes on from its last step.

    decay: share of the average that a step leaves. Buffers of whole numbers (indices of positions)
    are not averaged.
    """

    def __init__(self, decay: float) -> None:
        super().__init__(
            avg_fn=lambda mean, now, _: (
                decay * mean + (1 - decay) * now if now.is_floating_point() else now
            )
        )

    on_validation_epoch_end = Callback.on_validation_epoch_end
    on_validation_end = (
        WeightAveraging.on_validation_epoch_end
    )  # puts the weights back, after others have looked
    on_fit_end = (
        WeightAveraging.on_train_end
    )  # which Lightning skips for a run that goes on from its last step
