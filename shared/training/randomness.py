"""Random operations that a checkpoint cannot hold.

``keras.random`` with a seed generator keeps its state in the model's variables. An op such as
``tf.random.normal`` keeps it inside the runtime's kernel, where nothing can read or set it: a resumed
training draws other numbers. So such ops are looked for in the graph of the step, and named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from typing import Any

import keras

_OPS = """
    AllCandidateSampler FixedUnigramCandidateSampler LearnedUnigramCandidateSampler
    LogUniformCandidateSampler ThreadUnsafeUnigramCandidateSampler UniformCandidateSampler
    Multinomial ParameterizedTruncatedNormal RandomCrop RandomGamma RandomPoisson RandomPoissonV2
    RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt RngReadAndSkip RngSkip
    SampleDistortedBoundingBox SampleDistortedBoundingBoxV2 StatefulRandomBinomial StatefulStandardNormal
    StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt
    StatefulUniformInt TruncatedNormal
"""
STATEFUL_RANDOM = frozenset(_OPS.split())
"""Op types whose definition is stateful and that draw numbers, of TensorFlow 2.21. A test compares
them with the registry of ops. ``tf.random.Generator`` (Rng..., Stateful...) has a variable, but no
Keras layer tracks it, so it is not in a checkpoint of ours either."""


def unrepeatable(function: Any, model: keras.Model | None = None) -> list[str]:
    """The random sources of a traced function whose state no checkpoint has, each once, in order.

    Args:
        function: A concrete function, or its graph. Functions that it calls and the bodies of its loops
            and branches are searched too.
        model: Whose variables the checkpoint has. Given, the states of ``keras.random`` that the
            function uses and that are not among them are reported too, such as that of
            ``keras.random.normal(shape)`` without a seed.

    Returns:
        Such as ``"RandomStandardNormal in sequential/noise"``; the place is the op's name scope, which is
        the path of its layer where a layer made it.
    """
    layers = {layer.name for layer in model._flatten_layers()} if model is not None else set()
    found = dict.fromkeys(
        _described(node, layers)
        for node in _nodes(getattr(function, "graph", function))
        if _is_stateful_random(node)
    )
    if model is not None:
        held = {id(part) for variable in model.variables for part in _parts(variable.value)}
        for variable in sorted(getattr(function, "variables", ()), key=lambda variable: variable.name):
            if _SEED_STATE in variable.name and not held & {id(part) for part in _parts(variable)}:
                found[f"keras.random without a SeedGenerator of the model's{_owner(variable.name)}"] = None
    return list(found)


def warning(found: Iterable[str]) -> str:
    """What to tell the person about them."""
    return (
        f"Random operations that no checkpoint can hold: {'; '.join(found)}. Training that is resumed "
        "will not be equal to the bit to one that ran through. Use keras.random with a "
        "keras.random.SeedGenerator kept as an attribute of the layer, or tf.random.stateless_* ops."
    )


def _nodes(graph: Any) -> Iterator[Any]:
    definition = graph.as_graph_def()
    yield from definition.node
    for nested in definition.library.function:
        yield from nested.node_def


def _is_stateful_random(node: Any) -> bool:
    if node.op.startswith("CudnnRNN"):  # with a seed of its own, drawn from only where it drops out
        return bool(node.attr["dropout"].f > 0)
    return node.op in STATEFUL_RANDOM


def _described(node: Any, layers: Set[str]) -> str:
    scopes = [part for part in node.name.split("/")[:-1] if not _NO_PLACE.fullmatch(part)]
    if scopes and _OF_A_FUNCTION.fullmatch(scopes[-1]):
        scopes.pop()
    # A second trace of a layer in one graph is called dense_1.
    scopes = [
        re.sub(r"_\d+$", "", s) if s not in layers and re.sub(r"_\d+$", "", s) in layers else s
        for s in scopes
    ]
    return f"{node.op} in {'/'.join(scopes)}" if scopes else node.op


_NO_PLACE = re.compile(r"|(replica|while|cond|body|StatefulPartitionedCall|PartitionedCall)(_\d+)*")
_OF_A_FUNCTION = re.compile(
    r"(random_\w+|truncated_normal|parameterized_truncated_normal|categorical|stateful_\w+)(_\d+)*"
)
"""The scope that ``tf.random.normal`` and its like open themselves."""

_SEED_STATE = "seed_generator_state"


def _owner(name: str) -> str:
    """The place in a state's name, if it was made inside a layer."""
    scope = name.partition(f"/{_SEED_STATE}")[0]
    return "" if re.fullmatch(r"seed_generator(_\d+)*", scope) else f", first in {scope}"


def _parts(value: Any) -> tuple[Any, ...]:
    """A variable's copies on the replicas, or itself."""
    return (value, *getattr(value, "values", ()))
