"""The search for batch size, precision and XLA: what is tried in which order, and what is chosen.

Nothing here knows TensorFlow or processes: a trial is a function that is given. So the search
can be followed, and tested, with a table of made-up speeds.

1. Climb the ladder of batch sizes in the simplest setting, until throughput falls or levels
   off, memory ends, or the budget does.
2. Try every other usable precision at the size chosen so far; climb on with one that wins.
3. Try XLA once, at the size and precision chosen so far.

A size that the person gave is never changed. Where it does not fit into memory, it is tried in
micro-batches, ever smaller, whose gradients add up to those of the whole batch.

A larger batch learns less from each example (McCandlish et al. 2018), so the smallest size
within 5% of the fastest is taken, and only one that ran. A setting that is not faster by
more than the noise of both measurements loses to the simpler one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.errors import InputError, TrainingError
from shared.plan import Trial

NEAR_ENOUGH = 0.95
"""Share of the best throughput from which the smaller batch is taken."""

LEAST_GAIN = 0.03
"""A smaller gain than this counts as noise, whatever the spread says."""

LEAST_XLA_GAIN = 0.10
"""XLA compiles for long, anew in every fold and phase: it must earn that back."""

FEWEST_STEPS = 4
"""Steps that an epoch should have at least; larger batches are not tried."""


def ladder(count: int, *, largest: int, replicas: int = 1, smallest: int = 8) -> list[int]:
    """Batch sizes to try, ascending: ``replicas`` times powers of two.

    Args:
        count: Number of examples; sizes that leave an epoch fewer than four steps are left out.
        largest: The most that the person allows.
        replicas: Every size is a multiple of it.
        smallest: Where to begin, if the other bounds allow.

    >>> ladder(10_000, largest=256)
    [8, 16, 32, 64, 128, 256]
    >>> ladder(150, largest=256)
    [8, 16, 32]
    >>> ladder(5, largest=256), ladder(10_000, largest=4), ladder(10_000, largest=64, replicas=3)
    ([4], [4], [12, 24, 48])
    """
    bound = min(largest, count, max(smallest, count // FEWEST_STEPS))
    sizes = [replicas]
    while sizes[-1] * 2 <= bound:
        sizes.append(sizes[-1] * 2)
    return [size for size in sizes if size >= smallest] or sizes[-1:]


def micro_batches(size: int, replicas: int = 1) -> list[int]:
    """Numbers of micro-batches that a batch may be cut into, ascending, each at least twice the one before.

    They divide every replica's share, down to one example.

    >>> micro_batches(64), micro_batches(24, replicas=2), micro_batches(20), micro_batches(13)
    ([2, 4, 8, 16, 32, 64], [2, 4, 12], [2, 4, 10, 20], [13])
    """
    share, chosen = size // replicas, [1]
    for count in range(2, share + 1):
        if share % count == 0 and count >= 2 * chosen[-1]:
            chosen.append(count)
    return chosen[1:]


def noise(one: Trial, other: Trial) -> float:
    """Relative difference in throughput that the two measurements cannot tell from none."""
    return max(LEAST_GAIN, (one.spread or 0.0) + (other.spread or 0.0))


def ratio(one: Trial, other: Trial) -> float:
    """Throughput of ``one`` over that of ``other``; both ran."""
    assert one.samples_per_second is not None
    assert other.samples_per_second
    return one.samples_per_second / other.samples_per_second


def choose(trials: Sequence[Trial], *, fastest: bool = False) -> Trial | None:
    """The trial to go with, or None where none ran.

    Settings (precision, XLA) are compared by their best throughput, in the order in which
    they were first tried, simplest first; a later one must win by more than the noise. Within
    the setting the smallest batch within 5% of its fastest is taken.

    Args:
        fastest: Take the fastest instead of the smallest within 5%.
    """
    chosen: list[Trial] = []
    for setting in dict.fromkeys((trial.precision, trial.xla) for trial in trials):
        group = [t for t in trials if (t.precision, t.xla) == setting and t.verdict == "fits"]
        if not group:
            continue
        if not chosen:
            chosen = group
            continue
        new, old = _fastest(group), _fastest(chosen)
        needed = max(noise(new, old), LEAST_XLA_GAIN if new.xla and not old.xla else 0.0)
        if ratio(new, old) > 1 + needed:
            chosen = group
    if not chosen:
        return None
    best = _fastest(chosen)
    if fastest:
        return best
    return min(
        (trial for trial in chosen if ratio(trial, best) >= NEAR_ENOUGH), key=lambda trial: trial.batch_size
    )


def _fastest(trials: Sequence[Trial]) -> Trial:
    return max(trials, key=lambda trial: trial.samples_per_second or 0.0)


@dataclass
class Search:
    """One search. :meth:`run` fills ``trials`` and ``reasons``.

    Args:
        measure: ``measure(batch_size, precision, xla, seconds, accumulation)`` makes one trial within
            that limit; raises where the trial shows a bug.
        sizes: The ladder, ascending; a single one where the size is given.
        precisions: Policies to compare, simplest first.
        xla: None tries it at the end; else it is given.
        seconds: Budget of the whole search. The first trial may exceed it: without one there is no plan.
        trial_seconds: Limit of a single trial.
        fastest: See :func:`choose`.
        cuts: Numbers of micro-batches to try, ascending, where the smallest size does not fit as a whole.
        tell: Called before each trial with a sentence on what is tried, and the best so far.
    """

    measure: Callable[[int, str, bool, float, int], Trial]
    sizes: Sequence[int]
    precisions: Sequence[str]
    xla: bool | None
    seconds: float
    trial_seconds: float
    fastest: bool = False
    cuts: Sequence[int] = ()
    tell: Callable[[str, Trial | None], None] = lambda what, best: None
    clock: Callable[[], float] = time.monotonic
    trials: list[Trial] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._started = self.clock()
        self._longest = 0.0

    def run(self) -> Trial:
        """Tries and chooses.

        Raises:
            TrainingError: Not even the smallest size ran.
        """
        simplest, *others = self.precisions
        plain = bool(self.xla)
        self._climb(self.sizes, simplest, plain)
        if self.trials[0].verdict == "out of memory":
            self._cut(simplest, plain)
        for precision in others:
            self._other_precision(precision, plain)
        if self.xla is None:
            self._try_xla()
        chosen = self._choice()
        if chosen is None:
            raise self._nothing_ran()
        self.reasons.insert(0, self._why_this_size(chosen))
        return chosen

    def _choice(self) -> Trial | None:
        return choose(self.trials, fastest=self.fastest)

    def _left(self) -> float:
        return self.seconds - (self.clock() - self._started)

    def _try(self, size: int, precision: str, xla: bool, accumulation: int = 1) -> Trial:
        cut = f" in {accumulation} micro-batches" if accumulation > 1 else ""
        what = f"batch {size}{cut}, {precision}{', XLA' if xla else ''}"
        self.tell(f"trying {what}", self._choice())
        limit = self.trial_seconds
        if self._choice() is not None:
            limit = min(limit, max(1.0, self._left()))
        before = self.clock()
        trial = self.measure(size, precision, xla, limit, accumulation)
        self._longest = max(self._longest, self.clock() - before)
        self.trials.append(trial)
        return trial

    def _affordable(self) -> bool:
        """Whether another trial fits into the budget, by what the longest so far took."""
        return not self.trials or self._left() > 1.2 * self._longest

    def _climb(self, sizes: Sequence[int], precision: str, xla: bool) -> None:
        best: Trial | None = None
        level = 0
        for size in sizes:
            if not self._affordable():
                self.reasons.append(
                    f"Batch sizes from {size} on were not tried: the budget of {self.seconds:g} s was used up."
                )
                return
            trial = self._try(size, precision, xla)
            if trial.verdict != "fits":
                if len(sizes) > 1:
                    self.reasons.append(f"The climb ended at batch {size}: {trial.verdict}.")
                return
            if best is not None and ratio(trial, best) < 1 - noise(trial, best):
                self.reasons.append(
                    f"The climb ended at batch {size}: {ratio(trial, best):.2f}x of the throughput "
                    f"at {best.batch_size}."
                )
                return
            level = level + 1 if best is not None and ratio(trial, best) * NEAR_ENOUGH < 1 else 0
            best = trial if best is None or ratio(trial, best) > 1 else best
            if level == 2 and size != sizes[-1]:
                self.reasons.append(
                    f"The climb ended at batch {size}: two steps up brought less than 5% "
                    f"({ratio(trial, best):.2f}x of the best)."
                )
                return

    def _cut(self, precision: str, xla: bool) -> None:
        """Tries the smallest size in ever smaller micro-batches, whatever the budget: so far there is no plan."""
        for accumulation in self.cuts:
            trial = self._try(self.sizes[0], precision, xla, accumulation)
            if trial.verdict != "out of memory":
                return

    def _other_precision(self, precision: str, xla: bool) -> None:
        base = self._choice()
        if base is None:
            return
        if not self._affordable():
            self.reasons.append(f"{precision} was not tried: the budget of {self.seconds:g} s was used up.")
            return
        trial = self._try(base.batch_size, precision, xla, base.accumulation)
        if trial.verdict != "fits":
            self.reasons.append(f"{precision} rejected: {trial.verdict}{_because(trial)}.")
            return
        gain = ratio(trial, base)
        where = f"{gain:.2f}x of {base.precision} here, at batch {base.batch_size}"
        if gain > 1 + noise(trial, base):
            self.reasons.append(f"{precision} chosen over {base.precision}: {where}.")
            self._climb([size for size in self.sizes if size > base.batch_size], precision, xla)
        elif gain >= 1 - noise(trial, base):
            self.reasons.append(
                f"{precision} rejected: {where}, inside the noise of {noise(trial, base):.0%}; "
                f"{base.precision} is simpler."
            )
        else:
            self.reasons.append(f"{precision} rejected: {where}.")

    def _try_xla(self) -> None:
        base = self._choice()
        if base is None:
            return
        # It compiles several times longer than a plain graph.
        if self._left() < 3 * self._longest:
            self.reasons.append("XLA left off: the budget did not allow to try it.")
            return
        trial = self._try(base.batch_size, base.precision, True, base.accumulation)
        if trial.verdict != "fits":
            self.reasons.append(f"XLA rejected: {trial.verdict}{_because(trial)}.")
            return
        gain = ratio(trial, base)
        needed = max(noise(trial, base), LEAST_XLA_GAIN)
        where = f"{gain:.2f}x of the speed without it here"
        if trial.compile_seconds is not None:
            where += f", compiled in {trial.compile_seconds:.1f} s"
        if gain > 1 + needed:
            self.reasons.append(f"XLA chosen: {where}.")
        elif gain > 1:
            self.reasons.append(f"XLA rejected: {where}; it must win by {needed:.0%} to be worth compiling.")
        else:
            self.reasons.append(f"XLA rejected: {where}.")

    def _why_this_size(self, chosen: Trial) -> str:
        if chosen.accumulation > 1:
            return (
                f"Batch {chosen.batch_size}, as asked for, in {chosen.accumulation} micro-batches of "
                f"{chosen.batch_size // chosen.accumulation}: as a whole it ran out of memory. Their gradients "
                "add up to the batch's; batch normalisation, where the model has it, sees the micro-batches."
            )
        if len(self.sizes) == 1:
            return f"Batch {chosen.batch_size}: the only size asked for, or that the examples allow; it ran."
        group = self._ran_like(chosen)
        if len(group) == 1:  # a later setting was tried at the size that the climb had found
            group = self._ran_like(self.trials[0])
            chosen = next(trial for trial in group if trial.batch_size == chosen.batch_size)
        best = _fastest(group)
        if len(group) == 1:
            return f"Batch {chosen.batch_size}: the only size that ran, {_speed(chosen)}."
        if best is chosen:
            return f"Batch {chosen.batch_size}: the fastest that ran, {_speed(chosen)}; no smaller came within 5%."
        return (
            f"Batch {chosen.batch_size}: the smallest within 5% of the fastest, {ratio(chosen, best):.2f}x of "
            f"the {_speed(best)} at {best.batch_size}."
        )

    def _ran_like(self, one: Trial) -> list[Trial]:
        setting = (one.precision, one.xla)
        return [t for t in self.trials if (t.precision, t.xla) == setting and t.verdict == "fits"]

    def _nothing_ran(self) -> TrainingError:
        first, last = self.trials[0], self.trials[-1]
        cut = f", and so it did in {last.accumulation} micro-batches" if last.verdict == first.verdict else ""
        remedy = {
            "out of memory": "Use a smaller model or examples, set a smaller plan.batch_size, or find more memory.",
            "timed out": "Raise plan.trial_seconds, or set plan.batch_size and plan.precision yourself.",
            "unsound": "Look for NaN or Inf in the data, and for a learning rate that is too high.",
        }.get(first.verdict, "Run with --debug to see what the trial printed.")
        return TrainingError(
            f"No batch size could be trained: batch {first.batch_size} with {first.precision} gave "
            f"{first.verdict!r}{_because(first)}{cut if last.accumulation > 1 else ''}.",
            remedy,
        )


def check_given_size(size: int, replicas: int) -> None:
    """Refuses a batch size that the replicas cannot share.

    Raises:
        InputError: It is no multiple of ``replicas``; names the nearest that is.
    """
    if size % replicas:
        raise InputError(
            f"plan.batch_size is {size}, which {replicas} replicas cannot share equally.",
            f"Take {max(replicas, round(size / replicas) * replicas)}.",
        )


def _because(trial: Trial) -> str:
    return f" ({trial.note})" if trial.note else ""


def _speed(trial: Trial) -> str:
    return f"{trial.samples_per_second:,.0f} samples/s"
