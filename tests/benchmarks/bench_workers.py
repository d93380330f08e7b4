"""Two worker processes against one process: a step on the same global batch, and where its time goes.

Run by ``make bench``; asserts nothing. A ratio above 1 says that the two are faster. On this one
machine they share its cores and talk through its loopback, so this tells what working together
costs, not what several machines gain. A step is timed at 1 and at 16 steps a call, which gives the
cost of a call; and the workers sum tensors of the gradients' sizes alone, which is an all-reduce.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import turns

from shared import cluster, lock, worker
from shared.worker import Call

WORKERS, BATCH, SEVERAL = 2, 64, 16
HEAVY, LIGHT = "LSTM", "XRAY_HEAD"
"""Networks: the light one's step is short enough to see what a call costs beside it."""

Found = dict[str, dict[str, float]]
"""Milliseconds by network and what was timed."""


def main() -> None:
    short = turns.quick(__doc__)
    steps, repeats = (16, 1) if short else (64, turns.REPEATS)
    with lock.held():
        ways = {"alone": lambda: together(1, steps), "workers": lambda: together(WORKERS, steps)}
        found = turns.in_turns(ways, repeats)
    print(
        f"a step of one process over one of {WORKERS} workers, global batch {BATCH}, "
        f"median of {repeats} turns (lowest to highest)"
    )
    for network in (HEAVY, LIGHT):
        alone, workers = ([turn[network] for turn in found[name]] for name in ("alone", "workers"))
        print(found["alone"][0][network]["title"])
        for a_call in (1, SEVERAL):
            key = str(a_call)
            faster = turns.ratio([turn[key] for turn in alone], [turn[key] for turn in workers])
            print(
                f"  {a_call:2} steps a call: {faster:22} {middle(alone, key):7.2f} ms alone, "
                f"{middle(workers, key):7.2f} ms by {WORKERS}"
            )
        print(
            f"  an all-reduce of the gradients ({workers[0]['bytes'] / 1e3:,.0f} kB): "
            f"{middle(workers, 'all-reduce'):.2f} ms"
        )
        if network == LIGHT:
            print(f"  a call: {call_cost(alone):.2f} ms alone, {call_cost(workers):.2f} ms by {WORKERS}")


def middle(found: list[dict[str, float]], key: str) -> float:
    return sorted(turn[key] for turn in found)[len(found) // 2]


def call_cost(found: list[dict[str, float]]) -> float:
    """Milliseconds that a call adds to the steps in it: a step's time is ``step + call / steps a call``."""
    return (middle(found, "1") - middle(found, str(SEVERAL))) * SEVERAL / (SEVERAL - 1)


def together(count: int, steps: int) -> Found:
    """What the chief of ``count`` workers found, or the one process."""
    environments: list[Any] = cluster.environments(count) if count > 1 else [None]
    device = "workers" if count > 1 else "cpu"
    calls = [Call(measured, (device, steps), {}, environment) for environment in environments]
    outcomes = worker.together(calls, timeout=300)
    failed = worker.first_failure(outcomes)
    return dict(worker.value_of(outcomes[failed or 0], "measured"))


def measured(device: str, steps: int) -> Found:
    """In a child: milliseconds of a step and, among workers, of an all-reduce."""
    import networks

    from shared import accelerator
    from shared.config import AcceleratorSection

    found: Found = {}
    with lock.lent(), accelerator.opened(AcceleratorSection(device=device)) as opened:
        for name in (HEAVY, LIGHT):
            found[name] = of_network(getattr(networks, name), opened, steps)
    return found


def of_network(network: Any, opened: Any, steps: int) -> dict[str, Any]:
    import tensorflow as tf

    from shared import input_pipeline
    from shared.contract import Source
    from shared.plan import ExecutionPlan
    from shared.training import crew
    from shared.training.step import make_stepper

    with opened.strategy.scope():
        model = network.build()
    plan = ExecutionPlan(device=opened.device, replicas=opened.replicas, batch_size=BATCH)
    stepper = make_stepper(model, network.loss, plan, rate=1e-3, strategy=opened.strategy)
    source = Source(BATCH, dataset=tf.data.Dataset.from_tensor_slices(network.examples(BATCH)))
    part = crew.of(opened.strategy).part
    batches = stepper.iterate(input_pipeline.one_batch(source, plan, part=part))

    def milliseconds(work: Any, calls: int) -> float:
        """Of a call, the median; as many calls on every worker, whatever their clocks say."""
        work()
        return float(turns.median([turns.took(work) for _ in range(calls)]).clock * 1000)

    timed: dict[str, Any] = {
        "title": f"{network.title}: {model.count_params():,} parameters",
        "bytes": 4 * model.count_params(),
    }
    for a_call in (1, SEVERAL):
        timed[str(a_call)] = milliseconds(lambda n=a_call: stepper.run(batches, n), steps // a_call) / a_call
    if opened.replicas > 1:
        timed["all-reduce"] = milliseconds(all_reduces(opened.strategy, model, SEVERAL), 4) / SEVERAL
    return timed


def all_reduces(strategy: Any, model: Any, times: int) -> Callable[[], None]:
    """A function that sums zeros in the gradients' place over the workers, one time after the other."""
    import tensorflow as tf

    gradients = tuple(tf.zeros(variable.shape) for variable in model.trainable_variables)

    def on_replica(*given: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, list(given))

    @tf.function(autograph=False)
    def many() -> Any:
        values = gradients
        for _ in range(times):  # each takes what the one before gave, so that none runs beside it
            values = tuple(strategy.run(on_replica, args=values))
        return values

    return lambda: [value.numpy() for value in many()] and None


if __name__ == "__main__":
    main()
