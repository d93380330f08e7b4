"""The small forms of a model against Predictor: latency of one example, bytes, difference.

Run by ``make bench``; asserts nothing. A ratio above 1 says that the form is faster than
``Predictor.one`` on the SavedModel. Networks are untrained, one thread computes, and each call takes
a numpy array and gives one; the median call of a turn counts. The difference is the largest to
the SavedModel, as a share of its largest output; of untrained networks it says little. Conversion
has a child of its own for each form, as in a run, because the converter can take its process with
it.
"""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import turns

from shared import lock, worker
from shared.errors import CasebookError
from shared.runs.forms import LITERT_FILES

NETWORKS = ("LSTM", "CNN", "EFFICIENTNET")
ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
CALLS, WARM_UP, TURN_SECONDS, EXAMPLES = 200, 5, 0.5, 32
OURS = "Predictor.one"


def main() -> None:
    short = turns.quick(__doc__)
    repeats = 1 if short else turns.REPEATS
    print(f"latency of {OURS} over a form's, median of {repeats} turns (lowest to highest)")
    with lock.held():
        for name in NETWORKS[:2] if short else NETWORKS:
            with tempfile.TemporaryDirectory() as folder:
                show(name, Path(folder), repeats)


def show(name: str, folder: Path, repeats: int) -> None:
    print(worker.call(publish, name, folder, environment=ONE_THREAD))
    problems: dict[str, str] = {}
    for kind in LITERT_FILES:
        made = worker.run(convert, name, folder, kind, timeout=300, environment=ONE_THREAD)
        if isinstance(made.error, CasebookError):
            problems[kind] = made.error.message
        elif made.verdict in (worker.Verdict.KILLED, worker.Verdict.TIMED_OUT):
            problems[kind] = f"its conversion: {made.verdict.value}"
        else:
            worker.value_of(made, "convert")
    forms = [kind for kind in LITERT_FILES if kind not in problems]
    found = worker.call(measured, name, folder, forms, repeats, environment=ONE_THREAD)
    for form, (seconds, size, difference) in found.items():
        print(
            f"  {form:16} {turns.ratio(found[OURS][0], seconds):22} {statistics.median(seconds) * 1000:8.3f} ms, "
            f"{size / 1e3:8,.0f} kB, differs by {difference:.2g}"
        )
    for kind, why in problems.items():
        print(f"  {kind:16} left out: {why}")


def publish(name: str, folder: Path) -> str:
    """In a child: writes the SavedModel."""
    from shared.runs import saved_model

    network, model = built(name)
    saved_model.write(model, folder / "member-0" / "saved_model")
    return f"{network.title}: {model.count_params():,} parameters"


def convert(name: str, folder: Path, kind: str) -> None:
    """In a child: writes one small form."""
    from shared.runs import litert

    network, model = built(name)
    examples = [x[None] for x in network.examples(EXAMPLES)[0]]
    member = folder / "member-0"
    litert.convert(
        lambda: model,
        member / "saved_model",
        kind,
        examples,
        member / LITERT_FILES[kind],
        work=folder / "work" / kind,
        has_loops=litert.recurrent(model),
    )


def built(name: str) -> tuple[Any, Any]:
    """Network and model, with the same weights in every child."""
    import keras
    import networks

    keras.utils.set_random_seed(0)
    network = getattr(networks, name)
    return network, network.build()


def measured(
    name: str, folder: Path, kinds: list[str], repeats: int
) -> dict[str, tuple[list[float], int, float]]:
    """In a child: of each form seconds by turn, bytes and difference."""
    import networks

    from shared.runs.litert import LiteRT
    from shared.runs.predictor import Predictor

    member = folder / "member-0"
    x = getattr(networks, name).examples(EXAMPLES)[0]
    predictor = Predictor.load(folder, warm=True)
    calls: dict[str, Callable[[Any], Any]] = {OURS: predictor.one}
    sizes = {OURS: sum(path.stat().st_size for path in (member / "saved_model").rglob("*") if path.is_file())}
    for kind in kinds:
        path = member / LITERT_FILES[kind]
        form = LiteRT([path], threads=1)
        calls[kind] = lambda one, form=form: form(one[None])[0]
        sizes[kind] = path.stat().st_size
    ways = {kind: functools.partial(clocked, answer, x[0]) for kind, answer in calls.items()}
    seconds = turns.in_turns(ways, repeats)
    wanted = predictor(x)
    differs = {
        kind: max(abs(answer(one) - said).max() for one, said in zip(x, wanted, strict=True))
        / abs(wanted).max()
        for kind, answer in calls.items()
    }
    return {kind: (seconds[kind], sizes[kind], differs[kind]) for kind in calls}


def clocked(answer: Callable[[Any], Any], x: Any) -> float:
    """Seconds of the median call in a turn."""
    for _ in range(WARM_UP):
        answer(x)
    times: list[float] = []
    end = time.perf_counter() + TURN_SECONDS
    while len(times) < CALLS and time.perf_counter() < end:
        times.append(turns.took(lambda: answer(x)).clock)
    return statistics.median(times)


if __name__ == "__main__":
    main()
