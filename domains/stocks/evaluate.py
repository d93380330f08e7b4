"""How the field judges a forecast of direction, beyond the one score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domains.stocks import backtest, figures
from domains.stocks.score import OfLabel, names, of_label, score, scored
from shared.contract import Evaluation, Figure, FoldResult, Metric, Predictions, Table
from shared.evaluation import calibration, metrics
from shared.evaluation.predictions import pooled

if TYPE_CHECKING:
    from domains.stocks.config import StocksConfig

LIMITS = (
    "Not advice: a probability of direction says nothing of how far a price moves, nor of risk.",
    "The tickers are those that the source has: companies that failed and left it are missing (survivorship).",
    "Costs are a flat rate; slippage, taxes, borrowing and the effect of one's own orders are not in the backtest.",
    "Calibration was learnt on the months before each test; a change of regime undoes it.",
)


def evaluate(results: Sequence[FoldResult], config: StocksConfig, out: Path) -> Evaluation:
    """Metrics with intervals, tables by fold and ticker, the backtest, and the calibration to publish."""
    temperatures = [_temperature(result.validation) for result in results]
    calibrated = [
        replace(result.test, values=calibrate(result.test.values, temperature))
        for result, temperature in zip(results, temperatures, strict=True)
    ]
    pool = pooled(calibrated)
    tickers, sessions = names(pool.keys)
    strategy, held = backtest.run(
        tickers, sessions, pool.values[:, 0], pool.truth[:, 1].astype(np.float64), config.backtest
    )
    comparison = _compared(results, config)
    interval = comparison.model
    flags = []
    for result, one in zip(results, calibrated, strict=True):
        collapsed = metrics.collapse(of_label(one), ("down", "up"))
        if collapsed:
            flags.append(f"{result.fold.name}: {collapsed}")
    if interval.low is not None and interval.low <= 0.5:
        flags.append(
            f"The interval of AUROC ({interval.low:.3f} to {interval.high:.3f}) holds 0.5: "
            "no evidence that the model can tell up from down."
        )
    return Evaluation(
        metrics=_metrics(pool, interval, config),
        tables=[
            _by_fold(results, calibrated, temperatures),
            _by_ticker(pool, tickers),
            _accounts(strategy, held, config),
        ],
        figures=_figures(results, pool, comparison, strategy, held, config, out),
        decision={
            "temperature": temperatures[-1],
            "threshold": 0.5,
            "horizon": config.window.horizon,
            "calibrated_on": len(results[-1].validation),
        },
        flags=flags,
        limits=LIMITS,
    )


def calibrate(values: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities at ``temperature``, in the shape and dtype of ``values``."""
    values = np.asarray(values)
    return calibration.apply(values, temperature).astype(values.dtype)


def _temperature(validation: Predictions) -> float:
    return calibration.temperature(validation.values[:, 0], validation.truth[:, 0])


def _compared(results: Sequence[FoldResult], config: StocksConfig) -> metrics.Comparison:
    pools = {"model": pooled([result.test for result in results])}
    for name in results[0].baselines:
        pools[name] = pooled([result.baselines[name] for result in results])
    gate = config.gate
    compared: metrics.Comparison = metrics.bootstrap(
        score([result.fold for result in results], config),
        pools,
        resamples=gate.resamples,
        confidence=gate.confidence,
    )
    return compared


def _metrics(pool: Predictions, model: Any, config: StocksConfig) -> list[Metric]:
    up = float(pool.truth[:, 0].mean())
    asked = [
        ("MCC", metrics.mcc, True, "at probability one half; 0 where one class is always predicted"),
        (
            "Brier score",
            metrics.brier,
            False,
            f"calibrated; always saying {up:.3f} would score {up * (1 - up):.4f}",
        ),
        ("accuracy", metrics.accuracy, True, f"base rate {max(up, 1 - up):.4f}: the commoner class, always"),
    ]
    gate = config.gate
    found = [
        metrics.interval(
            scored(name, OfLabel(metric), config, higher=higher), pool,
            resamples=gate.resamples, confidence=gate.confidence, note=note,
        )
        for name, metric, higher, note in asked
    ]  # fmt: skip
    error = calibration.reliability(pool.values[:, 0], pool.truth[:, 0]).error
    return [
        Metric("AUROC", model.value, model.low, model.high, note="chance 0.5; mean over folds"),
        *found,
        Metric("calibration error (ECE)", error, note="calibrated on each fold's validation"),
    ]


def _by_fold(
    results: Sequence[FoldResult], calibrated: Sequence[Predictions], temperatures: Sequence[float]
) -> Table:
    rows = []
    for result, one, temperature in zip(results, calibrated, temperatures, strict=True):
        rivals = [metrics.auroc(of_label(said)) for said in result.baselines.values()]
        up = float(one.truth[:, 0].mean())
        row: list[Any] = [result.fold.name, len(one), _r(metrics.auroc(of_label(one)))]
        row += [_r(value) for value in rivals]
        row += [_r(metrics.mcc(of_label(one))), _r(metrics.accuracy(of_label(one))), _r(max(up, 1 - up))]
        row += [_r(metrics.brier(of_label(one)), 4), _r(temperature, 2)]
        rows.append(row)
    names = [f"AUROC {name}" for name in results[0].baselines]
    columns = [
        "fold",
        "examples",
        "AUROC model",
        *names,
        "MCC",
        "accuracy",
        "base rate",
        "Brier",
        "temperature",
    ]
    return Table(
        "By fold", columns, rows, "A base rate is the share of the commoner class in the test itself."
    )


def _by_ticker(pool: Predictions, tickers: np.ndarray) -> Table:
    rows = []
    for name in np.unique(tickers):
        mine = of_label(pool.take(tickers == name))
        up = float(mine.truth[:, 0].mean())
        rows.append(
            [str(name), len(mine), _r(metrics.auroc(mine)), _r(metrics.mcc(mine)), _r(metrics.accuracy(mine)),
             _r(max(up, 1 - up)), _r(metrics.brier(mine), 4)]
        )  # fmt: skip
    return Table("By ticker", ["ticker", "examples", "AUROC", "MCC", "accuracy", "base rate", "Brier"], rows)


def _accounts(strategy: backtest.Account, held: backtest.Account, config: StocksConfig) -> Table:
    rows = [
        [
            name,
            f"{account.yearly_return:+.1%}",
            f"{account.yearly_volatility:.1%}",
            _r(account.sharpe, 2),
            f"{account.drawdown:.1%}",
            f"{account.invested.mean():.0%}",
            f"{account.traded.mean() * backtest.SESSIONS_PER_YEAR:.0f}x",
        ]
        for name, account in (("model", strategy), ("buy and hold", held))
    ]
    section = config.backtest
    return Table(
        "Backtest",
        ["account", "return a year", "volatility", "Sharpe ratio", "worst fall", "invested", "traded a year"],
        rows,
        f"A signal at the close of a session is traded at the next open and earns until the open after; "
        f"{section.cost_bps:g} basis points a trade; long above {section.threshold:g}, else "
        f"{'short' if section.short else 'cash'}; {len(held.sessions)} sessions.",
    )


def _figures(
    results: Sequence[FoldResult],
    pool: Predictions,
    comparison: metrics.Comparison,
    strategy: backtest.Account,
    held: backtest.Account,
    config: StocksConfig,
    out: Path,
) -> list[Figure]:
    by_fold = {"model": [metrics.auroc(of_label(result.test)) for result in results]}
    for name in results[0].baselines:
        by_fold[name] = [metrics.auroc(of_label(result.baselines[name])) for result in results]
    figures.contenders(out / "contenders.png", comparison, by_fold, [result.fold.name for result in results])
    raw = pooled([result.test for result in results])
    figures.reliability(out / "reliability.png", raw.values[:, 0], pool.values[:, 0], pool.truth[:, 0])
    figures.equity(out / "equity.png", strategy, held, config.backtest.cost_bps)
    return [
        Figure(out / "contenders.png", "AUROC of the model beside every baseline; 0.5 is chance."),
        Figure(
            out / "reliability.png",
            "How often the close was higher, by the probability said (tenths of equal count, one standard error). "
            "On the dotted line probabilities mean what they say.",
        ),
        Figure(
            out / "equity.png",
            "The next-session backtest: following the model after costs, and holding the same stocks in equal shares.",
        ),
    ]


def _r(value: float, digits: int = 3) -> float:
    return round(float(value), digits)
