"""What a domain is.

A domain turns raw files into numbered examples, says how they split without leaking,
which network learns them, which baselines it must beat and how its field judges it.
Everything else (command line, flows, schedule, measured plan, training under every
strategy, resume, gate, registry, report) it gets for that, with no further code.

A domain is registered by an entry point of the group ``casebook`` that names an
instance of a :class:`Domain` subclass. Importing a domain's package must not import
TensorFlow: its methods import what they need.

The life of one run, method by method::

    ingest(source) -> prepared folder + DataCard
      folds(prepared) -> [Fold, ...]                 for each fold, and each member (seed):
        examples(prepared, fold, split) -> Source    train, validation, test
        phases(prepared, fold) -> [Phase, ...]       trained one after the other
        baselines(prepared, fold) -> {name: Predictions}
      score(prepared) -> Score                       the one number that the gate compares
      evaluate([FoldResult, ...]) -> Evaluation      the field's own metrics and figures
      explain(model, FoldResult) -> [Figure, ...]    figures that need the published model itself
    predict(model, source) -> Summary                new files in, the field's output out
    answerer(model) -> Answerer                      one input in, one answer out, in real time (optional)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from shared.config import DomainConfig
from shared.errors import CasebookError, InputError, did_you_mean

if TYPE_CHECKING:  # of these only the names are used here, and `--help` must not pay for them
    import keras
    import numpy as np
    import tensorflow as tf

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

ENTRY_POINT_GROUP = "casebook"


@dataclass(frozen=True)
class Quarantined:
    """One piece of input that was set aside, and why. ``item`` must not identify a patient."""

    item: str
    reason: str


@dataclass(frozen=True)
class DataCard:
    """What ingest found: the data's passport, shown in the report and kept in the run's ``card.json``.

    Attributes:
        title: What the data is, in a line.
        synthetic: True where the data was made up; then every output says so.
        examples: Number of usable examples, counted before splitting.
        facts: What a person would ask about the data, e.g. ``{"tickers": 5, "from": "2000-03-01"}``.
        quarantine: What was set aside, each with its reason.
        warnings: What a person should know before trusting results.
        fingerprint: Hash of the prepared content; two equal ones mean equal examples.
    """

    title: str
    synthetic: bool
    examples: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    quarantine: Sequence[Quarantined] = ()
    warnings: Sequence[str] = ()
    fingerprint: str = ""


@dataclass(frozen=True)
class Fold:
    """One leak-free division of the examples.

    Attributes:
        name: Short and stable, e.g. ``"2010-2011"``; shown to people.
        splits: For each of train, validation and test the numbers of its examples,
            int64 ``[n_split]``, into the domain's fixed numbering.
        keys: A stable name for every example, str ``[n]``, e.g. ``"AAPL/2010-03-01"``.
            The same example has the same key in every run: models are compared on keys.
        groups: str ``[n]``, or None. Examples with one group (a patient, a session) may not
            be divided between splits, and are resampled together.
        spans: datetime64 or int64 ``[n, 2]``, or None: the first and last moment that the
            example's *label* looks at. No span of train may meet one of test. In a domain
            with several series, spans of different series are compared too: markets move together.
        about: What a person should know of this fold, e.g. the boundary dates.
    """

    name: str
    splits: Mapping[Split, np.ndarray]
    keys: np.ndarray
    groups: np.ndarray | None = None
    spans: np.ndarray | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """The examples of one split, in a fixed order, as tf.data or by number.

    Exactly one of ``dataset`` and ``gather`` is given. An example is ``(x, y)`` or
    ``(x, y, weight)``; x may be a dict; y may hold NaN where a label is missing, if the
    phase's loss masks it. The deterministic part must be the same at every reading: it is
    cached, and the order of training is a pure function of (seed, epoch).

    Attributes:
        count: Number of examples.
        dataset: tf.data set of single (unbatched) examples, in the order of the split.
        gather: Function of int64 ``[B]`` positions (0..count-1), run inside the graph, that
            returns a batch ``(x [B, ...], y [B, ...])``: for windows over one tensor in memory.
        augment: ``augment(x, seed) -> x`` for one example, with int32 ``[2]`` seed for
            ``tf.random.stateless_*``; used in training only, after the cache.
    """

    count: int
    dataset: tf.data.Dataset | None = None
    gather: Callable[[Any], Any] | None = None
    augment: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        if (self.dataset is None) == (self.gather is None):
            raise CasebookError("A Source takes exactly one of dataset and gather.")


@dataclass(frozen=True)
class Phase:
    """One stage of training; a domain has one or several, each building on the last.

    Attributes:
        name: Shown to people, e.g. ``"head"``, ``"fine-tune"``.
        build: ``build(previous)`` returns the Keras model of this phase; ``previous`` is the
            trained model of the phase before, None in the first. The last phase's model
            takes the examples of :meth:`Domain.examples` and is the one that is published.
        loss: ``loss(y_true, y_pred)`` returns one value per example, ``[B]``. A Keras loss
            function (not class instance) does, e.g. ``keras.losses.binary_crossentropy``.
        epochs: Most epochs; early stopping may end it sooner.
        learning_rate: At the reference batch of 32; scaled by the plan's stated rule.
        monitor: ``"loss"`` (of the validation set), or the name of a metric in ``metrics``.
        metrics: Name to a factory of a ``keras.metrics.Metric``, computed on validation.
        monitor_mode: Whether a smaller or a larger monitor is better.
        source: Examples of this phase where they differ from the domain's, by split, e.g.
            frozen features computed once.
        refines: The model starts as what the phase before has learnt; its start counts as an epoch,
            and is kept where no epoch is better.
        callbacks: Factory of Keras callbacks, made anew for each training of this phase.
    """

    name: str
    build: Callable[[keras.Model | None], keras.Model]
    loss: Callable[[Any, Any], Any]
    epochs: int
    learning_rate: float
    monitor: str = "loss"
    metrics: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    monitor_mode: Literal["min", "max"] = "min"
    source: Callable[[Split], Source] | None = None
    refines: bool = False
    callbacks: Callable[[], Sequence[keras.callbacks.Callback]] = tuple


@dataclass(frozen=True)
class Predictions:
    """What a model, or a baseline, says of some examples, beside the truth.

    Attributes:
        keys: str ``[n]``, see :class:`Fold`.
        values: float32 ``[n, ...]``: the model's output, e.g. probabilities ``[n, labels]``.
        truth: float32 ``[n, ...]``; NaN where a label is missing.
        groups: str ``[n]``: what is resampled together; each example its own where None.
    """

    keys: np.ndarray
    values: np.ndarray
    truth: np.ndarray
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, positions: np.ndarray) -> Predictions:
        """The rows at ``positions`` (int or bool ``[m]``), in that order, repeats allowed."""
        groups = None if self.groups is None else self.groups[positions]
        return replace(
            self,
            keys=self.keys[positions],
            values=self.values[positions],
            truth=self.truth[positions],
            groups=groups,
        )


@dataclass(frozen=True)
class Score:
    """The one number by which models are compared and the gate decides.

    Attributes:
        name: The field's name for it, e.g. ``"AUROC"``.
        of: Function of :class:`Predictions` that returns the number; NaN where undefined.
        higher_is_better: False for errors such as RMSE.
        chance: What knowing nothing scores (0.5 for AUROC); None where there is no such value.
        resample: ``"groups"`` draws groups with replacement; ``"blocks"`` draws stretches of
            consecutive groups (stationary bootstrap), for series where neighbours agree.
        block: Mean length of a stretch in groups, for ``"blocks"``; None estimates it.
        unit: Shown behind the number, e.g. ``"K"``.
    """

    name: str
    of: Callable[[Predictions], float]
    higher_is_better: bool
    chance: float | None = None
    resample: Literal["groups", "blocks"] = "groups"
    block: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class FoldResult:
    """A trained fold as ``evaluate`` gets it: predictions of the (mean of the) members."""

    fold: Fold
    validation: Predictions
    test: Predictions
    baselines: Mapping[str, Predictions]


@dataclass(frozen=True)
class Metric:
    """A number with its interval; ``low`` and ``high`` are None where none was computed."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture file in the run's ``figures/`` with the sentence that goes under it."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Table:
    """A small table for the report: strings and numbers, one row a line."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""


@dataclass(frozen=True)
class Evaluation:
    """How the field judges the model, beyond the one score.

    Attributes:
        metrics: The field's own metrics of the model, with intervals where they can be had.
        tables: E.g. metrics by fold, by label, by region.
        figures: Files under the ``out`` that evaluate was given.
        decision: Plain numbers that the published model needs to act: calibration, operating
            point. Chosen on *validation*, stored with the model, given back to ``predict``.
        flags: Findings that a person must see, e.g. ``"one class is never predicted"``.
        limits: What the model must not be used for, and what was not tested.
    """

    metrics: Sequence[Metric] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    decision: Mapping[str, Any] = field(default_factory=dict)
    flags: Sequence[str] = ()
    limits: Sequence[str] = ()


@dataclass(frozen=True)
class Published:
    """A trained model as ``predict`` gets it.

    Attributes:
        path: Folder of the export; ``shared.runs.predictor.Predictor.load(path)`` opens it.
        decision: What :class:`Evaluation` stored with it.
        config: The configuration it was trained with, as nested plain data.
        label: How outputs name it, e.g. ``"stocks v3 (champion)"`` or
            ``"stocks v1 (held candidate: there is no champion)"``.
        synthetic: It was trained on synthetic data; outputs say so.
    """

    path: Path
    decision: Mapping[str, Any]
    config: Mapping[str, Any]
    label: str
    synthetic: bool = False


@dataclass(frozen=True)
class Summary:
    """What ``predict`` did: shown to the person, kept as ``summary.json`` beside the output.

    Attributes:
        output: The main file written, under the ``out`` that predict was given.
        scored: Inputs that got a result.
        quarantine: Inputs set aside, each with its reason.
        headline: One sentence with the result that matters most.
        facts: Further numbers worth showing, in order.
    """

    output: Path
    scored: int
    headline: str
    quarantine: Sequence[Quarantined] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answerer:
    """A published model, ready to answer one input at a time.

    Attributes:
        answer: From a line (an object of JSON) to its answer, plain data (NaN becomes null): what
            ``predict`` says of the same input. Raises InputError, with a remedy, for a line that
            cannot be answered. Called from one thread. The line's ``id``, the model's label and
            whether it is of synthetic data are added by the caller.
        line: What a line looks like, for people: one line, shortened where it is long.
    """

    answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    line: str


class Domain(ABC):
    """Subclass this, fill the abstract methods, register an instance by entry point.

    ``config`` is always an instance of the class's :attr:`Config`; ``prepared`` is the
    folder that :meth:`ingest` filled. Methods are called in different processes: what one
    must tell another goes through files in ``prepared``.
    """

    name: ClassVar[str]
    """Lower-case word used in commands, folders and the registry, e.g. ``"stocks"``."""
    title: ClassVar[str]
    """What it does, in a line, for ``--help``."""
    Config: ClassVar[type[DomainConfig]]

    @abstractmethod
    def ingest(self, source: str, config: Any, out: Path) -> DataCard:
        """Reads raw data, sets aside what cannot be used, writes prepared data under ``out``.

        Args:
            source: Path of a file or folder, name of an embedded source, or ``"synthetic"``.
            out: An empty folder; the caller moves it to its final place when this returns.

        Raises:
            InputError: Nothing usable was found; names the source and what was expected.
        """

    @abstractmethod
    def folds(self, prepared: Path, config: Any) -> list[Fold]:
        """Leak-free folds: one, or several that walk forward in time, oldest first.

        The last fold's model is the one that is published. Must not need TensorFlow.
        """

    @abstractmethod
    def examples(self, prepared: Path, config: Any, fold: Fold, split: Split) -> Source:
        """The examples ``fold.splits[split]``, in that order.

        An example depends on nothing but itself: statistics of other examples belong into the
        model (:meth:`phases`). So a published model can be tried on another fold's examples.
        """

    @abstractmethod
    def phases(self, prepared: Path, config: Any, fold: Fold) -> list[Phase]:
        """The stages of training. Statistics for normalisation come from ``fold``'s train split."""

    @abstractmethod
    def baselines(self, prepared: Path, config: Any, fold: Fold) -> dict[str, Predictions]:
        """Honest rivals on the test split: the field's simple rules and a strong simple model.

        Keys, order and truth equal those of the model's own test predictions.
        """

    @abstractmethod
    def score(self, prepared: Path, config: Any) -> Score:
        """The number that the gate compares."""

    @abstractmethod
    def evaluate(self, results: Sequence[FoldResult], config: Any, out: Path) -> Evaluation:
        """Metrics, tables and figures of the field; figures go under ``out``."""

    def explain(
        self, model: keras.Model, prepared: Path, config: Any, result: FoldResult, out: Path
    ) -> list[Figure]:
        """Figures that need the trained model itself, such as Grad-CAM; under ``out``.

        Args:
            model: The published model's first member, in float32.
            result: The last fold, without its baselines.
        """
        return []

    @abstractmethod
    def predict(self, model: Published, source: str, config: Any, out: Path) -> Summary:
        """Scores new input and writes the field's output file under ``out``.

        A bad input is set aside with its reason; the rest is scored.
        """

    def answerer(self, model: Published, config: Any) -> Answerer:
        """Loads the model to answer line by line, in real time (``casebook predict --stdin``).

        May take some seconds; each answer then takes milliseconds: ``Predictor.load(path, warm=True)``.

        Raises:
            InputError: This domain does not answer line by line.
        """
        raise InputError(
            f"The domain {self.name} does not answer line by line.",
            f"Give it whole files: `casebook predict {self.name} --source PATH`.",
        )

    @abstractmethod
    def synthesize(self, out: Path, config: Any, seed: int, *, strength: float = 1.0) -> None:
        """Writes small raw data with a planted, known signal, as a person's own source would be.

        Args:
            strength: 1 plants the full signal, 0 none; then no honest model beats chance.
        """

    def tiny(self) -> dict[str, Any]:
        """Nested settings under which a whole run takes seconds: for tests and first looks."""
        return {"source": "synthetic", "train": {"epochs": 2}}

    def members(self, config: Any) -> list[int]:
        """Seeds of the models whose mean is the prediction."""
        return [config.train.seed + index for index in range(config.train.members)]

    def inputs_as_of(
        self, prepared: Path, config: Any, moment: str | None
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Inputs computed from data up to ``moment`` only, for the guard of prefix invariance.

        Only for domains whose inputs are computed along time. Returns (keys str ``[n]``, inputs
        float ``[n, ...]``) where inputs are recomputed from raw values truncated after
        ``moment`` (an ISO date; None: nothing is truncated), or None: not ordered in time.
        """
        return None


@cache
def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def domain_names() -> list[str]:
    """Names of all installed domains, in alphabetical order. Loads none of them."""
    return sorted(_registered())


def find(name: str) -> Domain:
    """The domain registered as ``name``.

    Raises:
        InputError: No such domain; names those there are.
    """
    points = _registered()
    if name not in points:
        raise InputError(f"There is no domain {name!r}.", did_you_mean(name, sorted(points)))
    domain = points[name].load()
    if not isinstance(domain, Domain):
        raise CasebookError(
            f"The entry point casebook.{name} = {points[name].value} must name an instance of "
            f"shared.Domain, received {type(domain).__name__}.",
            'Point it at an instance: `name = "package:domain"` with `domain = MyDomain()`.',
        )
    return domain
