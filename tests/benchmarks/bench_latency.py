"""One example at a time: our Predictor against torch and against the ways Keras itself offers.

Run by ``make bench``; asserts nothing. A ratio above 1 says that ours is faster. All have one
thread and the same network, an LSTM that looks at 60 sessions of 8 features (64 units, 2
outputs); each call takes a numpy array and gives one. The median call of a turn counts, without
the first ones; turns go round, so that what else the machine does hits all alike.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from shared.runs.predictor import Predictor

SESSIONS, FEATURES, UNITS, OUTPUTS = 60, 8, 64, 2
REPEATS, CALLS, WARM_UP, TURN_SECONDS = 3, 300, 5, 2.0
INSTALL = (
    "torch is not installed, so it is not compared: `pip install torch==2.13.0` (other pins bring gigabytes)"
)

Answer = Callable[[np.ndarray], np.ndarray]


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    inputs = keras.Input((SESSIONS, FEATURES))
    model = keras.Model(inputs, keras.layers.Dense(OUTPUTS)(keras.layers.LSTM(UNITS)(inputs)))
    with tempfile.TemporaryDirectory() as folder:
        model.export(str(Path(folder) / "member-0" / "saved_model"), verbose=False)
        predictor, plain = Predictor.load(Path(folder)), Predictor.load(Path(folder))
    started = time.perf_counter()
    ready = predictor.warm()
    print(
        f"Predictor is ready after {time.perf_counter() - started:.1f} s, {ready.way}; tried: "
        + ", ".join(f"{way} {seconds * 1000:.2f} ms" for way, seconds in ready.seconds.items())
    )
    ours: Answer = predictor.one
    others: dict[str, Answer] = {
        "its SavedModel's serve": lambda x: plain(x[None])[0],
        "model(x)": lambda x: np.asarray(model(x[None]))[0],
        "model.predict(x)": lambda x: model.predict(x[None], verbose=0)[0],
    }
    torch_answer = torch_lstm()
    if torch_answer is None:
        print(INSTALL)
    else:
        others = {"torch.nn.LSTM": torch_answer, **others}
    x = np.random.default_rng(0).normal(size=(SESSIONS, FEATURES)).astype("float32")
    ratios: dict[str, list[float]] = {name: [] for name in others}
    times: dict[str, list[float]] = {name: [] for name in ("Predictor.one(x)", *others)}
    for _ in range(REPEATS):
        mine = clocked(ours, x)
        times["Predictor.one(x)"].append(mine)
        for name, answer in others.items():
            theirs = clocked(answer, x)
            times[name].append(theirs)
            ratios[name].append(theirs / mine)
    print(f"latency of one example over Predictor.one's, median of {REPEATS} turns (lowest to highest)")
    for name, found in {"Predictor.one(x)": [1.0], **ratios}.items():
        spread = f"({min(found):.2f} to {max(found):.2f})" if len(found) > 1 else ""
        milliseconds = statistics.median(times[name]) * 1000
        print(f"  {name:24} {statistics.median(found):8.2f} {spread:22} {milliseconds:8.2f} ms")


def clocked(answer: Answer, x: np.ndarray) -> float:
    """Seconds of the median call in a turn."""
    for _ in range(WARM_UP):
        answer(x)
    times: list[float] = []
    end = time.perf_counter() + TURN_SECONDS
    while len(times) < CALLS and time.perf_counter() < end:
        started = time.perf_counter()
        answer(x)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def torch_lstm() -> Answer | None:
    """The same network in torch; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    lstm = torch.nn.LSTM(FEATURES, UNITS, batch_first=True).eval()
    head = torch.nn.Linear(UNITS, OUTPUTS).eval()

    def answer(x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            steps, _ = lstm(torch.from_numpy(x[None]))
            said: np.ndarray = head(steps[:, -1]).numpy()[0]
        return said

    return answer


if __name__ == "__main__":
    main()
