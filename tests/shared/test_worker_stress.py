"""Children that hang, crash, flood, fork, hoard and die, by the hundred: verdicts right, nothing left behind."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest

from shared import progress, worker
from shared.worker import Verdict

pytestmark = pytest.mark.soak

# Functions of this file travel by value: a child need not import it, and pytest with it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that starts in half a second, for tests that end it."""
    monkeypatch.setattr(worker, "PRELOAD", ("numpy",))


def server() -> psutil.Process:
    assert worker._current is not None
    return psutil.Process(worker._current._process.pid)


def held() -> dict[str, Any]:
    """All that parent and server could leak: descriptors, threads, processes, semaphores, shared memory, files."""
    me, theirs = psutil.Process(), server()
    return {
        "descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "children": sorted(child.pid for child in me.children(recursive=True)),
        "server's descriptors": theirs.num_fds(),
        "server's threads": theirs.num_threads(),
        "shared memory": sorted(os.listdir("/dev/shm")),
        "semaphores": [Path("/proc/sysvipc", kind).read_text() for kind in ("sem", "shm", "msg")],
        "files": sorted(os.listdir(os.environ["TMPDIR"])),
    }


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def segfault() -> None:
    ctypes.string_at(8)


def kill_self(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)


def raise_error() -> None:
    raise ValueError("seven")


def print_a_megabyte() -> None:
    os.write(1, b"x" * (1 << 20))


def use_tensorflow(number: int) -> float:
    import tensorflow as tf

    return float(tf.function(lambda x: tf.reduce_sum(x @ x))(tf.ones([number, number])))


def leave_things_behind() -> None:
    threading.Thread(target=time.sleep, args=(300,)).start()
    subprocess.Popen(["sleep", "300"])
    if os.fork() == 0:
        time.sleep(300)


WAYS: tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Verdict], ...] = (
    (int, (), {}, Verdict.OK),
    (use_tensorflow, (8,), {}, Verdict.OK),
    (raise_error, (), {}, Verdict.BUG),
    (segfault, (), {}, Verdict.KILLED),
    (os.abort, (), {}, Verdict.KILLED),
    (os._exit, (0,), {}, Verdict.BUG),
    (sys.exit, (0,), {}, Verdict.BUG),
    (kill_self, (), {}, Verdict.KILLED),
    (kill_self, (signal.SIGRTMIN + 2,), {}, Verdict.KILLED),
    (print_a_megabyte, (), {}, Verdict.OK),
    (use_tensorflow, (256,), {}, Verdict.OK),
    (threading.Lock, (), {}, Verdict.BUG),
    (time.sleep, (60,), {"timeout": 0.1}, Verdict.TIMED_OUT),
    (time.sleep, (60,), {"timeout": 0.1, "grace": 5.0}, Verdict.TIMED_OUT),
    (np.ones, (1 << 28,), {"memory_bytes": 64 << 20}, Verdict.OUT_OF_MEMORY),
    (leave_things_behind, (), {}, Verdict.OK),
)


def test_two_hundred_children_in_a_row_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for function, args, options, _ in WAYS:  # what is imported once, and cached, is not leaked
        worker.run(function, *args, **options)
    assert eventually(lambda: server().children() == [])
    before = held()
    for number in range(200):
        function, args, options, verdict = WAYS[number % len(WAYS)]
        outcome = worker.run(function, *args, **options)
        assert outcome.verdict is verdict, (number, function, outcome)
    # Those that its children leave behind are buried by the server a moment later.
    assert eventually(lambda: held() == before), (before, held())


# --- what they print, return and hoard --------------------------------------------------------


@pytest.mark.parametrize("descriptor", [1, 2])
def test_gigabytes_of_output_cost_the_parent_nothing(descriptor: int) -> None:
    def flood() -> str:
        block = b"y" * (1 << 20)
        for _ in range(2048):
            os.write(descriptor, block)
        os.write(descriptor, b"\nthe end\n")
        raise RuntimeError

    worker.run(int)
    before = psutil.Process().memory_info().rss
    peaks = []
    stop = threading.Event()
    watch = threading.Thread(
        target=lambda: [
            peaks.append(psutil.Process().memory_info().rss) for _ in iter(lambda: stop.wait(0.05), True)
        ]
    )
    watch.start()
    outcome = worker.run(flood, timeout=120)
    stop.set()
    watch.join()
    assert outcome.verdict is Verdict.BUG
    assert "the end" in outcome.message
    assert len(outcome.message) < 40_000
    assert max(peaks) - before < 64 << 20


def test_who_prints_without_end_is_stopped_at_its_limit_all_the_same() -> None:
    def flood() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            os.write(1, b"y" * (1 << 16))

    for grace in (0.0, 0.5):
        started = time.monotonic()
        assert worker.run(flood, timeout=0.5, grace=grace).verdict is Verdict.TIMED_OUT
        assert time.monotonic() - started < 10


def test_who_tells_without_end_is_stopped_at_its_limit_all_the_same() -> None:
    def flood() -> None:
        while True:
            progress.emit("step", 1)

    started = time.monotonic()
    assert worker.run(flood, timeout=0.5).verdict is Verdict.TIMED_OUT
    assert time.monotonic() - started < 10


def test_half_a_gigabyte_is_returned_for_little_more_than_twice_its_size() -> None:
    size = 500 << 20

    def make() -> dict[str, Any]:
        return {"array": np.arange(size // 8), "note": "whole"}

    def of_parent() -> tuple[int, int]:
        worker.PRELOAD = ("numpy",)
        value = worker.call(make)
        assert value["note"] == "whole"
        assert value["array"][-1] == size // 8 - 1
        value["array"][0] = 5  # it is the caller's own
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, value["array"].nbytes

    worker.run(int)
    outcome = worker.run(of_parent, timeout=120)  # a parent of its own, whose peak is known
    assert outcome.verdict is Verdict.OK, outcome.message
    peak, nbytes = outcome.value
    assert nbytes == size
    base = worker.run(int).peak_bytes or 0
    assert peak - base < 2.5 * size


def test_hoarding_under_a_limit_is_out_of_memory() -> None:
    def hoard() -> None:
        lists = []
        while True:
            lists.append(list(range(1 << 16)))

    def hoard_bytes() -> None:
        blocks = []
        while True:
            blocks.append(b"x" * (1 << 20))

    for function in (hoard, hoard_bytes):
        outcome = worker.run(function, memory_bytes=200 << 20, timeout=60)
        assert outcome.verdict is Verdict.OUT_OF_MEMORY, outcome.message


def test_a_value_too_large_for_the_limit_is_out_of_memory() -> None:
    outcome = worker.run(lambda: np.ones(200 << 20, np.uint8), memory_bytes=300 << 20, timeout=60)
    assert outcome.verdict is Verdict.OUT_OF_MEMORY, outcome.message


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of 400 MB; the kernel kills who takes more."""
    one, two = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, limit = (one, "memory.limit_in_bytes") if one.is_dir() else (two, "memory.max")
    group = root / f"casebook-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / limit).write_text(str(400 << 20))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no right to make a control group: {error}")
    yield group
    assert eventually(lambda: (group / "cgroup.procs").read_text() == "")
    group.rmdir()


def test_killed_by_the_kernel_for_memory_is_out_of_memory(small_group: Path) -> None:
    def hoard() -> None:
        (small_group / "cgroup.procs").write_text(str(os.getpid()))
        blocks = []
        while len(blocks) < 4000:
            blocks.append(b"x" * (1 << 20))

    outcome = worker.run(hoard, timeout=60)
    assert outcome.verdict is Verdict.OUT_OF_MEMORY, outcome.message
    assert "memory ran out" in outcome.message


# --- what they start --------------------------------------------------------------------------


def _pid_in(file: Path) -> int:
    return int(file.read_text())


@pytest.mark.parametrize("how", ["answers", "exits", "crashes", "hangs"])
@pytest.mark.parametrize("start", ["program", "fork", "shell"])
def test_what_a_child_has_started_ends_with_it_and_keeps_nobody_waiting(
    how: str, start: str, tmp_path: Path
) -> None:
    file = tmp_path / "pid"

    def begin() -> str:
        if start == "program":
            file.write_text(str(subprocess.Popen(["sleep", "300"]).pid))  # holds the pipe of the output
        elif start == "shell":
            os.system(f"sleep 300 & echo $! > {file}")
        elif (pid := os.fork()) == 0:
            time.sleep(300)
        else:
            file.write_text(str(pid))
        if how == "exits":
            os._exit(3)
        if how == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "hangs":
            time.sleep(300)
        return "answer"

    started = time.monotonic()
    outcome = worker.run(begin, timeout=1.0 if how == "hangs" else 60)
    assert time.monotonic() - started < 20
    expected = {
        "answers": Verdict.OK,
        "exits": Verdict.BUG,
        "crashes": Verdict.KILLED,
        "hangs": Verdict.TIMED_OUT,
    }
    assert outcome.verdict is expected[how]
    assert eventually(lambda: not psutil.pid_exists(_pid_in(file)))  # no zombie either


def test_a_daemon_stays_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    def begin() -> str:
        noise = [sys.executable, "-c", "import os\nwhile True: os.write(1, b'y' * 65536)"]
        file.write_text(str(subprocess.Popen(noise, start_new_session=True).pid))
        time.sleep(0.5)
        return "answer"

    started = time.monotonic()
    assert worker.call(begin) == "answer"
    assert time.monotonic() - started < 20
    # Its pipe has no reader any more, and that ends it here; what sleeps would stay.
    assert eventually(lambda: not psutil.pid_exists(_pid_in(file)))


def test_a_fork_that_returns_from_the_function_is_not_heard() -> None:
    def fork() -> str:
        if os.fork() == 0:
            logging.getLogger().warning("from the fork")
            return "fork"
        os.wait()
        return "child"

    assert worker.call(fork) == "child"

    def fork_and_fail() -> str:
        if os.fork() == 0:
            raise ValueError("in the fork")
        os.wait()
        return "child"

    assert worker.call(fork_and_fail) == "child"


def test_a_pool_of_processes_in_a_child() -> None:
    def pool() -> list[int]:
        import multiprocessing

        with multiprocessing.get_context("fork").Pool(2) as processes:
            return processes.map(abs, range(-4, 0))

    assert worker.call(pool, timeout=60) == [4, 3, 2, 1]


def test_a_child_with_children_of_its_own() -> None:
    def outer(depth: int) -> list[int]:
        worker.PRELOAD = ("numpy",)
        return [os.getpid(), *(worker.call(outer, depth - 1) if depth else [])]

    pids = worker.call(outer, 2, timeout=120)
    assert len(set(pids)) == 3
    assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))


# --- what they do to themselves ---------------------------------------------------------------


def test_a_child_that_closes_its_standard_streams_still_answers() -> None:
    def close() -> int:
        for descriptor in range(3):
            os.close(descriptor)
        opened = os.open(os.devnull, os.O_RDWR)
        with contextlib.suppress(OSError):
            print("to nobody")
        return opened

    assert worker.call(close) == 0


def test_a_child_that_closes_everything_is_told() -> None:
    outcome = worker.run(lambda: os.closerange(0, 4096), timeout=30)
    assert outcome.verdict is Verdict.BUG
    assert "before it could answer" in outcome.message


def test_a_child_that_takes_no_signals_is_stopped() -> None:
    def deaf() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, set(signal.Signals))
        os.setsid() if os.getpgrp() != os.getpid() else None
        time.sleep(300)

    started = time.monotonic()
    assert worker.run(deaf, timeout=0.5, grace=0.5).verdict is Verdict.TIMED_OUT
    assert time.monotonic() - started < 15


def test_signal_masks_do_not_reach_the_next_child() -> None:
    worker.run(lambda: signal.pthread_sigmask(signal.SIG_SETMASK, set(signal.Signals)))
    assert worker.call(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ())) == set()


# --- killed at random moments -----------------------------------------------------------------


def _work_a_little() -> str:
    for number in range(20):
        progress.emit("step", number)
        print("step", number)
        time.sleep(0.003)
    return "done"


def test_children_killed_at_random_moments() -> None:
    draw = random.Random(7)
    worker.run(int)
    verdicts: Counter[Verdict] = Counter()
    for _ in range(50):
        wait, number = draw.uniform(0.0, 0.12), draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
        stop = threading.Event()

        def shoot(wait: float = wait, number: int = number, stop: threading.Event = stop) -> None:
            stop.wait(wait)
            for child in server().children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.send_signal(number)

        shooter = threading.Thread(target=shoot)
        shooter.start()
        outcome = worker.run(_work_a_little, timeout=30)
        stop.set()
        shooter.join()
        verdicts[outcome.verdict] += 1
        if outcome.verdict is Verdict.OK:
            assert outcome.value == "done"
    assert set(verdicts) <= {Verdict.OK, Verdict.KILLED}, verdicts
    assert verdicts[Verdict.KILLED] >= 10
    assert eventually(lambda: server().children() == [])


def test_three_at_once_from_threads_ending_in_every_way() -> None:
    wrong = []

    def many(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(15):
            function, args, options, verdict = draw.choice(WAYS)
            outcome = worker.run(function, *args, **options)
            if outcome.verdict is not verdict:
                wrong.append((function, outcome))

    threads = [threading.Thread(target=many, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_together_with_members_killed_at_random_moments() -> None:
    draw = random.Random(3)
    worker.run(int)
    for _ in range(8):
        wait = draw.uniform(0.05, 0.4)

        def shoot(wait: float = wait) -> None:
            time.sleep(wait)
            found = server().children()
            if found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    draw.choice(found).kill()

        shooter = threading.Thread(target=shoot)
        shooter.start()
        started = time.monotonic()
        outcomes = worker.together(
            [worker.Call(time.sleep, (0.6,)) for _ in range(3)], timeout=60, linger=0.2
        )
        shooter.join()
        assert time.monotonic() - started < 20
        first = worker.first_failure(outcomes)
        if first is not None:
            assert "SIGKILL" in outcomes[first].message
    assert eventually(lambda: server().children() == [])


# --- interrupted at random moments ------------------------------------------------------------


def test_a_ctrl_c_at_any_instant_loses_no_place_in_the_stream() -> None:
    """Between two bytes of a message, and between reading it and noting it: what follows is still understood."""
    draw = random.Random(5)

    def count() -> None:
        asked: list[bool] = []
        signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
        number = 0
        while not asked:
            number += 1
            progress.emit("step", number, note="x" * (number * 7919 % 3000))
        progress.emit("saved", number)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(40):
            heard: list[progress.Progress] = []
            first = threading.Event()

            def hear(report: progress.Progress, heard: list = heard, first: threading.Event = first) -> None:
                if not first.is_set():
                    first.set()
                    signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.001, 0.1))
                heard.append(report)

            with progress.listening(hear), pytest.raises(KeyboardInterrupt):
                worker.run(count, grace=20)
            *steps, last = heard
            assert last.label == "saved"
            numbers = [report.done for report in steps]
            assert all(report.label == "step" for report in steps)
            gaps = [b - a for a, b in zip(numbers, [*numbers[1:], last.done], strict=True)]
            # The one that was being told when the interruption came may be missing.
            assert all(gap in (0, 1, 2) for gap in gaps), gaps
            assert sum(gap == 2 for gap in gaps) <= 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- and the server itself ------------------------------------------------------------------------


def test_the_server_killed_at_random_moments(light: None) -> None:
    draw = random.Random(11)
    worker.run(int)
    descriptors, verdicts = None, Counter()
    for number in range(15):
        victim = server()
        timer = threading.Timer(draw.uniform(0.0, 0.12), victim.kill)
        timer.start()
        outcome = worker.run(_work_a_little, timeout=60)
        timer.join()
        verdicts[outcome.verdict] += 1
        assert worker.call(lambda: 1) == 1  # by the next one
        if number == 1:
            descriptors = psutil.Process().num_fds()
    assert set(verdicts) <= {Verdict.OK, Verdict.KILLED}, verdicts
    assert verdicts[Verdict.KILLED] >= 3
    assert psutil.Process().num_fds() <= descriptors
    assert not [p for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE]
