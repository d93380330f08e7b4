"""CF NetCDF with stated encoding, read back and compared before anyone is told that it is there.

Time encodings lose whole years silently when they are left to chance (xarray#5969), so units
and calendar are written down here and the file must give the same moments back.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from domains.climate.grid import Grid
from domains.climate.loader import Series
from shared import files
from shared.contract import Published
from shared.errors import CasebookError

EPOCH = "days since 1850-01-01"


def write_checked(
    path: Path,
    values: np.ndarray,
    times: Sequence[Any],
    calendar: str,
    decision: Any,
    model: Published,
    series: Series,
    reference: Any = None,
) -> None:
    """Writes maps as CF NetCDF and compares what a reader gets.

    Args:
        values: float32 ``[time, lat, lon]`` on the model's grid, in the model's units.
        times: cftime moments ``[time]`` in ``calendar``.
        series: The input, for its names.
        reference: For forecasts, the last known moment; adds ``forecast_reference_time`` and
            ``forecast_period`` (with units), and the anomaly from the training climatology.

    Raises:
        CasebookError: The file doesn't read back equal.
    """
    dataset, encoding = _dataset(values, times, calendar, decision, model, series, reference)
    with files.atomic(path) as temporary:
        dataset.to_netcdf(temporary, engine="h5netcdf", encoding=encoding)
        _compare(temporary, dataset, calendar)


def _dataset(
    values: np.ndarray,
    times: Sequence[Any],
    calendar: str,
    decision: Any,
    model: Published,
    series: Series,
    reference: Any,
) -> tuple[Any, dict[str, dict[str, Any]]]:
    import xarray

    grid = Grid.from_dict(decision["grid"])
    name = str(decision["variable"])
    attributes = {"units": str(decision["unit"]), "long_name": series.long_name or name.replace("_", " ")}
    if decision["standard_name"]:
        attributes["standard_name"] = str(decision["standard_name"])
    dataset = xarray.Dataset(
        {name: (("time", "latitude", "longitude"), values, attributes)},
        coords={
            "time": ("time", np.array(list(times), dtype=object), {"standard_name": "time", "axis": "T"}),
            "latitude": (
                "latitude",
                grid.latitude,
                {"standard_name": "latitude", "units": "degrees_north", "axis": "Y"},
            ),
            "longitude": (
                "longitude",
                grid.longitude,
                {"standard_name": "longitude", "units": "degrees_east", "axis": "X"},
            ),
        },
        attrs={
            "Conventions": "CF-1.8",
            "title": f"{series.long_name or name.replace('_', ' ')}, {decision['task']} by casebook",
            "source": f"{model.label}, trained on {decision['trained on']}",
            "comment": (
                "SYNTHETIC: the model was trained on made-up data; these maps describe no real place."
                if model.synthetic
                else "Made by a neural network; see the run's report for its errors and limits."
            ),
        },
    )
    moment = _moment(calendar)
    # All encodings are stated: one left over from the input (chunks, packing) fits no longer.
    encoding: dict[str, dict[str, Any]] = {
        name: {"dtype": "float32", "_FillValue": np.float32(np.nan), "zlib": True, "complevel": 4},
        "time": dict(moment),
        "latitude": {"dtype": "float64", "_FillValue": None},
        "longitude": {"dtype": "float64", "_FillValue": None},
    }
    if reference is not None:
        days = _days(reference, times[0])
        dataset = dataset.assign_coords(
            forecast_reference_time=((), reference, {"standard_name": "forecast_reference_time"}),
            forecast_period=((), days, {"standard_name": "forecast_period", "units": "days"}),
        )
        encoding["forecast_reference_time"] = dict(moment)
        encoding["forecast_period"] = {"dtype": "float64", "_FillValue": None}
        if "climatology" in decision:
            normal = np.asarray(decision["climatology"], np.float32)
            dataset[f"{name}_anomaly"] = (
                ("time", "latitude", "longitude"),
                values - normal,
                {
                    "units": attributes["units"],
                    "long_name": f"{attributes['long_name']} anomaly from the mean of {decision['trained on']}",
                },
            )
            encoding[f"{name}_anomaly"] = dict(encoding[name])
    return dataset, encoding


def _moment(calendar: str) -> dict[str, Any]:
    """How moments are written: float64 days are exact to a microsecond."""
    return {"units": EPOCH, "calendar": calendar, "dtype": "float64"}


def _days(start: Any, end: Any) -> float:
    gap = end - start
    return gap.days + gap.seconds / 86400


def _compare(path: Path, dataset: Any, calendar: str) -> None:
    import xarray

    with xarray.open_dataset(
        path,
        engine="h5netcdf",
        decode_times=xarray.coders.CFDatetimeCoder(use_cftime=True),
        decode_timedelta=False,
    ) as found:
        for name in dataset.variables:
            mine, theirs = dataset[name].values, found[name].values
            # Moments are objects, which have no NaN.
            equal = np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")
            if not equal:
                raise CasebookError(f"{path.name}: {name} doesn't read back as it was written.")
        if found["time"].dt.calendar != calendar:
            raise CasebookError(
                f"{path.name}: the calendar {calendar} reads back as {found['time'].dt.calendar}."
            )
