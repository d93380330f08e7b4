"""How radiology judges: AUROC and AUPRC by label, the operating point, calibration, and limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from domains.xray import figures
from domains.xray.baselines import ACQUISITION
from domains.xray.config import XrayConfig
from domains.xray.decision import Decision
from shared.contract import Evaluation, FoldResult, Metric, Predictions, Score, Table
from shared.evaluation import calibration, metrics

_FEW = 15


def evaluate(results: Sequence[FoldResult], config: XrayConfig, out: Path) -> Evaluation:
    """See :meth:`shared.contract.Domain.evaluate`; there is one fold."""
    result = results[-1]
    labels = tuple(result.fold.about["labels"])
    decision = Decision.chosen(result.validation, labels, config.read.sensitivity)
    test = result.test
    calibrated = Predictions(test.keys, decision.probabilities(test.values), test.truth, test.groups)
    measured = _Measured(config, calibrated, decision)
    raw = calibration.reliability(test.values, test.truth)
    curve = calibration.reliability(calibrated.values, calibrated.truth)
    patients = len(test) if test.groups is None else len(np.unique(test.groups))
    return Evaluation(
        metrics=[
            *measured.rows(),
            Metric("ECE", curve.error, note=f"{raw.error:.3f} before calibration"),
            Metric("Brier", float(metrics.brier(calibrated))),
        ],
        tables=[measured.operating_table(), _by_label(result, labels)],
        figures=[
            figures.roc(test, result.baselines, labels, out / "roc.png"),
            figures.reliability(raw, curve, out / "reliability.png"),
            figures.separation(calibrated, decision, out / "separation.png"),
        ],
        decision=decision.to_dict(),
        flags=tuple(_flags(result, calibrated, decision)),
        limits=(
            "For ordering a worklist and for research; not a diagnosis, and not cleared for clinical use.",
            f"Tested on {len(test)} films of {patients} patients of the same source as it was "
            "trained on: another hospital, machine or age group needs its own test.",
            "One reader's labels stand for the truth; films with unknown labels are left out.",
            "Text burned into pixels is not looked for. A low probability does not rule anything out.",
        ),
    )


class _Measured:
    """Metrics of every label, with intervals that resample patients."""

    def __init__(self, config: XrayConfig, test: Predictions, decision: Decision) -> None:
        self.test, self.decision = test, decision
        self.calls = decision.calls(test.values)
        self.resamples, self.confidence = config.gate.resamples, config.gate.confidence
        self.points = {
            (column, what): self._interval(self._share(column, what), what)
            for column in range(len(decision.labels))
            for what in ("sensitivity", "specificity")
        }

    def rows(self) -> Iterator[Metric]:
        for column, name in enumerate(self.decision.labels):
            area = metrics.Ranked(metrics.auroc.curve, label=column)
            precision = metrics.Ranked(metrics.auprc.curve, label=column)
            share = float(np.nanmean(self.test.truth[:, column]))
            yield self._interval(area, f"AUROC {name}")
            yield self._interval(precision, f"AUPRC {name}", f"chance {share:.2f}")

    def operating_table(self) -> Table:
        rows = []
        for column, name in enumerate(self.decision.labels):
            threshold = self.decision.threshold[column]
            rows.append(
                [
                    name,
                    "none" if np.isnan(threshold) else f"{threshold:.2f}",
                    *(_shown(self.points[column, what]) for what in ("sensitivity", "specificity")),
                    f"{self.calls[:, column].mean():.0%}",
                ]
            )
        return Table(
            f"Operating point: chosen on validation for a sensitivity of {self.decision.sensitivity:.0%}",
            ("label", "probability from", "sensitivity on test", "specificity on test", "films called"),
            rows,
        )

    def _share(self, column: int, what: str) -> metrics.Averaged:
        truth = self.test.truth[:, column]
        sick = what == "sensitivity"
        weight = (truth == (1.0 if sick else 0.0)).astype("float64")
        right = (self.calls[:, column] == sick) * weight
        return metrics.Averaged(lambda predictions: (right, weight))

    def _interval(self, of: object, name: str, note: str = "") -> Metric:
        score = Score(name, of, higher_is_better=True)  # type: ignore[arg-type]
        return metrics.interval(
            score, self.test, resamples=self.resamples, confidence=self.confidence, name=name, note=note
        )


def _by_label(result: FoldResult, labels: Sequence[str]) -> Table:
    """AUROC of the model and of every baseline, label by label."""
    everyone = {"model": result.test, **result.baselines}
    rows = [
        [name, *(_number(metrics.Ranked(metrics.auroc.curve, label=c)(said)) for c in range(len(labels)))]
        for name, said in everyone.items()
    ]
    return Table("AUROC by label", ("", *labels), rows)


def _flags(result: FoldResult, test: Predictions, decision: Decision) -> Iterator[str]:
    calls = decision.calls(test.values)
    for column, name in enumerate(decision.labels):
        truth = test.truth[:, column]
        sick, known = int((truth == 1).sum()), int((~np.isnan(truth)).sum())
        if sick < _FEW or known - sick < _FEW:
            yield f"{name}: only {sick} yes and {known - sick} no in test; its numbers mean little."
        if np.isnan(decision.threshold[column]):
            yield f"{name}: no positive in validation, so there is no operating point and it is never called."
        elif calls[:, column].all():
            yield f"{name}: every film is called; at this sensitivity the model saves no reading."
        elif not calls[:, column].any():
            yield f"{name}: no film is called."
        acquisition = result.baselines.get(ACQUISITION)
        if acquisition is not None:
            area = metrics.Ranked(metrics.auroc.curve, label=column)(acquisition)
            if area > 0.65:
                yield (
                    f"{name}: how the film was taken alone gives an AUROC of {area:.2f}; the model may have learned "
                    "the machine or the ward."
                )


def _shown(metric: Metric) -> str:
    if not np.isfinite(metric.value):
        return "undefined"
    if metric.low is None or metric.high is None:
        return f"{metric.value:.2f}"
    return f"{metric.value:.2f} ({metric.low:.2f} to {metric.high:.2f})"


def _number(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "undefined"
