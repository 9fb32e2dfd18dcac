"""Timelines of kernels: when each warp entered and left the scopes of a launch, measured on the device, or predicted.

    from gluon_core.timeline import record

    with record() as timeline:
        kernel[grid](...)
    print(timeline.table())

`gl.scope` names the spans; `record(auto=True)` adds waits, barriers, TMA issues and products of the
matrix unit.

    from gluon_core.timeline import predict

    with predict("sm_90") as predictions:   # no device
        kernel[grid](...)
    print(predictions.table())
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gluon_timeline.decode import Launch, Span
    from gluon_timeline.predictor import Predictions, predict
    from gluon_timeline.recorder import Timeline, record

__all__ = ["Launch", "Predictions", "Span", "Timeline", "predict", "record"]
_DECODE, _PREDICTOR = ("Launch", "Span"), ("Predictions", "predict")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gluon_timeline import decode, predictor, recorder

    module = decode if name in _DECODE else predictor if name in _PREDICTOR else recorder
    return getattr(module, name)
