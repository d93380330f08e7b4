"""The search on made-up speeds: no TensorFlow, no processes, no time passes but by the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.batch_size import Search, check_given_size, choose, ladder, micro_batches, noise
from shared.errors import InputError, TrainingError
from shared.plan import Trial


def ran(size: int, speed: float, precision: str = "float32", xla: bool = False, spread: float = 0.0) -> Trial:
    return Trial(
        size, precision, xla, "fits", samples_per_second=speed, spread=spread, step_seconds=size / speed
    )


def failed(size: int, verdict: str, precision: str = "float32", note: str = "") -> Trial:
    return Trial(size, precision, False, verdict, note=note)


@pytest.mark.parametrize(
    ("count", "largest", "replicas", "sizes"),
    [
        (10_000, 256, 1, [8, 16, 32, 64, 128, 256]),
        (10_000, 200, 1, [8, 16, 32, 64, 128]),
        (150, 256, 1, [8, 16, 32]),
        (9, 256, 1, [8]),
        (3, 256, 1, [2]),
        (1, 256, 1, [1]),
        (10_000, 64, 2, [8, 16, 32, 64]),
        (10_000, 64, 3, [12, 24, 48]),
        (2, 64, 4, [4]),
        (10_000, 2, 4, [4]),
    ],
)
def test_ladder(count, largest, replicas, sizes):
    assert ladder(count, largest=largest, replicas=replicas) == sizes


def test_the_smallest_within_five_percent_is_chosen():
    trials = [ran(8, 50), ran(16, 94), ran(32, 96), ran(64, 100)]
    assert choose(trials).batch_size == 32
    assert choose(trials, fastest=True).batch_size == 64


def test_nothing_that_failed_is_chosen():
    assert choose([]) is None
    assert choose([failed(8, "out of memory")]) is None
    assert choose([ran(8, 50), failed(16, "killed")]).batch_size == 8


def test_a_faster_precision_must_win_by_more_than_the_noise():
    plain = ran(32, 100, spread=0.04)
    inside = ran(32, 107, "mixed_bfloat16", spread=0.04)
    beyond = ran(32, 109, "mixed_bfloat16", spread=0.04)
    assert noise(plain, inside) == pytest.approx(0.08)
    assert choose([plain, inside]) is plain
    assert choose([plain, beyond]) is beyond
    quiet = ran(32, 102, "mixed_bfloat16")
    assert choose([ran(32, 100), quiet]).precision == "float32"  # a spread of 0 is luck


def test_xla_must_earn_its_compilation():
    assert choose([ran(32, 100), ran(32, 108, xla=True)]).xla is False
    assert choose([ran(32, 100), ran(32, 112, xla=True)]).xla is True


def test_only_the_winning_settings_sizes_count():
    trials = [ran(16, 80), ran(32, 100), ran(32, 200, "mixed_float16"), ran(64, 300, "mixed_float16")]
    chosen = choose(trials)
    assert (chosen.batch_size, chosen.precision) == (64, "mixed_float16")


class Machine:
    """Answers trials from a table and keeps the time that they would have taken."""

    def __init__(self, table: dict, seconds: float = 1.0) -> None:
        self.table, self.seconds, self.now = table, seconds, 0.0
        self.asked: list[tuple] = []
        self.limits: list[float] = []

    def __call__(self, size: int, precision: str, xla: bool, limit: float, accumulation: int) -> Trial:
        cut = () if accumulation == 1 else (accumulation,)
        self.asked.append((size, precision, xla, *cut))
        self.limits.append(limit)
        self.now += min(self.seconds, limit)
        answer = self.table[(size, precision, xla, *cut)]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return Trial(size, precision, xla, answer, accumulation=accumulation)
        return replace(ran(size, answer, precision, xla), accumulation=accumulation)

    def search(self, sizes, precisions=("float32",), xla: bool | None = False, **options) -> Search:
        settings = {"seconds": 60.0, "trial_seconds": 45.0, **options}
        return Search(self, sizes, precisions, xla, clock=lambda: self.now, **settings)


def plain(*speeds: float | str) -> dict:
    return {(8 * 2**index, "float32", False): speed for index, speed in enumerate(speeds)}


def reasons(search: Search) -> str:
    return "\n".join(search.reasons)


def test_the_climb_stops_when_throughput_falls():
    machine = Machine(plain(100, 180, 150, 999))
    search = machine.search([8, 16, 32, 64])
    assert search.run().batch_size == 16
    assert len(machine.asked) == 3
    assert "ended at batch 32: 0.83x of the throughput at 16" in reasons(search)


def test_the_climb_stops_on_a_plateau_but_not_on_one_level_step():
    machine = Machine(plain(100, 101, 140, 141, 142, 999))
    search = machine.search([8, 16, 32, 64, 128, 256])
    assert search.run().batch_size == 32
    assert len(machine.asked) == 5
    assert "smallest within 5% of the fastest, 0.99x" in reasons(search)


@pytest.mark.parametrize("verdict", ["out of memory", "killed", "timed out", "unsound"])
def test_the_climb_stops_where_a_size_does_not_run(verdict):
    search = Machine(plain(100, 180, verdict)).search([8, 16, 32])
    assert search.run().batch_size == 16
    assert f"ended at batch 32: {verdict}" in reasons(search)
    assert search.trials[-1].verdict == verdict


def test_a_slower_precision_costs_one_trial():
    table = plain(100, 180, 183) | {(16, "mixed_bfloat16", False): 130}
    machine = Machine(table)
    search = machine.search([8, 16, 32], ["float32", "mixed_bfloat16"])
    assert search.run() == ran(16, 180)
    assert "mixed_bfloat16 rejected: 0.72x of float32 here, at batch 16." in search.reasons


def test_a_faster_precision_climbs_on_from_there():
    table = plain(100, 180, 183)
    table |= {(16, "mixed_float16", False): 300, (32, "mixed_float16", False): 500}
    search = Machine(table).search([8, 16, 32], ["float32", "mixed_float16"])
    assert search.run() == ran(32, 500, "mixed_float16")
    assert "mixed_float16 chosen over float32: 1.67x" in reasons(search)


def test_a_precision_inside_the_noise_is_said_to_be():
    table = plain(100) | {(8, "mixed_bfloat16", False): 102}
    search = Machine(table).search([8], ["float32", "mixed_bfloat16"])
    assert search.run().precision == "float32"
    assert "inside the noise of 3%; float32 is simpler" in reasons(search)


def test_xla_is_tried_once_at_the_chosen_size():
    table = plain(100, 180) | {(16, "float32", True): 250}
    machine = Machine(table)
    search = machine.search([8, 16], xla=None)
    assert search.run() == ran(16, 250, xla=True)
    assert machine.asked[-1] == (16, "float32", True)
    assert "XLA chosen: 1.39x" in reasons(search)
    table[(16, "float32", True)] = 190
    search = Machine(table).search([8, 16], xla=None)
    assert search.run().xla is False
    assert "XLA rejected: 1.06x" in reasons(search)


def test_the_budget_ends_the_climb_and_keeps_the_best_so_far():
    only = Machine(plain(100), seconds=10).search([8, 16], seconds=15)
    only.run()
    assert "Batch 8: the only size that ran, 100 samples/s." in reasons(only)
    machine = Machine(plain(100, 180, 300, 500), seconds=10)
    search = machine.search([8, 16, 32, 64], ["float32", "mixed_bfloat16"], xla=None, seconds=25)
    assert search.run().batch_size == 16
    assert machine.now <= 25
    text = reasons(search)
    assert "Batch sizes from 32 on were not tried" in text
    assert "mixed_bfloat16 was not tried" in text
    assert "XLA left off: the budget" in text


def test_the_first_trial_has_its_whole_limit_and_later_ones_what_is_left():
    machine = Machine(plain(100, 180, 300), seconds=8)
    machine.search([8, 16, 32], seconds=20, trial_seconds=45).run()
    assert machine.limits == [45, 12]


def test_a_bug_ends_the_search():
    with pytest.raises(ZeroDivisionError):
        Machine(plain(100, ZeroDivisionError())).search([8, 16]).run()


@pytest.mark.parametrize(
    ("verdict", "remedy"),
    [
        ("out of memory", "smaller model"),
        ("timed out", "plan.trial_seconds"),
        ("unsound", "NaN"),
        ("killed", ""),
    ],
)
def test_a_search_in_which_nothing_ran_is_an_error(verdict, remedy):
    with pytest.raises(TrainingError, match="batch 8 with float32 gave") as caught:
        Machine(plain(verdict)).search([8, 16]).run()
    assert remedy in caught.value.remedy


def test_a_given_batch_that_does_not_fit_is_cut_until_it_does():
    full, other = (64, "float32", False), (64, "mixed_float16", False)
    table = {full: "out of memory", (*full, 2): "out of memory", (*full, 4): 100, (*other, 4): 150}
    machine = Machine(table, seconds=40)
    search = machine.search([64], ["float32", "mixed_float16"], cuts=[2, 4, 8], seconds=200)
    chosen = search.run()
    assert (chosen.batch_size, chosen.accumulation, chosen.precision) == (64, 4, "mixed_float16")
    assert machine.asked == list(table)
    assert "Batch 64, as asked for, in 4 micro-batches of 16: as a whole it ran out of memory" in reasons(
        search
    )
    assert "batch normalisation" in reasons(search)


def test_cutting_goes_on_when_the_budget_is_spent_and_ends_at_another_verdict():
    full = (64, "float32", False)
    table = {full: "out of memory", (*full, 2): "out of memory", (*full, 4): 100}
    assert Machine(table, seconds=40).search([64], cuts=[2, 4], seconds=60).run().accumulation == 4
    table[(*full, 2)] = "timed out"
    machine = Machine(table)
    with pytest.raises(TrainingError, match="batch 64 with float32 gave 'out of memory'"):
        machine.search([64], cuts=[2, 4]).run()
    assert machine.asked[-1] == (*full, 2)


def test_a_batch_that_fits_in_no_micro_batches_is_an_error_that_says_so():
    full = (8, "float32", False)
    table = {full: "out of memory", (*full, 2): "out of memory", (*full, 4): "out of memory"}
    with pytest.raises(TrainingError, match="and so it did in 4 micro-batches") as caught:
        Machine(table).search([8], cuts=[2, 4]).run()
    assert "smaller model" in caught.value.remedy


@pytest.mark.parametrize(
    ("size", "replicas", "counts"),
    [(16, 1, [2, 4, 8, 16]), (16, 4, [2, 4]), (12, 1, [2, 4, 12]), (7, 1, [7]), (6, 2, [3]), (4, 4, [])],
)
def test_micro_batches_are_equal_shares_of_every_replica(size, replicas, counts):
    assert micro_batches(size, replicas) == counts
    assert all(size % (replicas * count) == 0 for count in counts)


def test_what_is_tried_is_told_with_the_best_so_far():
    told = []
    search = Machine(plain(100, 180)).search([8, 16])
    search.tell = lambda what, best: told.append((what, best and best.batch_size))
    search.run()
    assert told == [("trying batch 8, float32", None), ("trying batch 16, float32", 8)]


def test_a_given_size_must_be_shared_by_the_replicas():
    check_given_size(6, 3)
    with pytest.raises(InputError, match="3 replicas cannot share") as caught:
        check_given_size(7, 3)
    assert "6" in caught.value.remedy
