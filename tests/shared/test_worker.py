"""Children end in every way there is; what the parent is told must be right each time."""

from __future__ import annotations

import linecache
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shared import progress, worker
from shared.children import Exit
from shared.errors import InputError, WorkerError
from shared.forked import is_out_of_memory
from shared.outcome import last_words, why
from shared.server import quoted
from shared.worker import Verdict


def test_value_and_arguments_travel():
    outcome = worker.run(lambda a, b: {"sum": a + b, "pid": os.getpid()}, np.arange(3), b=1)
    assert outcome.verdict is Verdict.OK
    np.testing.assert_array_equal(outcome.value["sum"], [1, 2, 3])
    assert outcome.value["pid"] != os.getpid()
    assert outcome.seconds > 0
    assert outcome.peak_bytes > 10 << 20


def test_a_large_value_travels_both_ways():
    block = np.zeros(8 << 20, np.uint8)
    assert worker.call(lambda a: a + 1, block).sum() == 8 << 20


def test_nothing_returned_is_a_value():
    outcome = worker.run(lambda: None)
    assert outcome.verdict is Verdict.OK
    assert outcome.value is None


def test_children_have_tensorflow_and_the_parent_needs_none():
    def product() -> float:
        import tensorflow as tf

        return float(tf.reduce_sum(tf.ones([2, 2]) @ tf.ones([2, 2])))

    assert worker.call(product) == 8.0


def test_an_error_arrives_with_the_childs_traceback():
    def deep() -> None:
        print("about to fail")
        raise ValueError("seven")

    outcome = worker.run(deep)
    assert outcome.verdict is Verdict.BUG
    assert isinstance(outcome.error, ValueError)
    assert "in deep" in str(outcome.error.__cause__)
    assert "about to fail" in outcome.message
    with pytest.raises(ValueError, match="seven"):
        worker.call(deep)


@pytest.mark.parametrize("place", ["file", "notebook cell"])
def test_the_source_of_a_function_travels_with_it(place, tmp_path: Path):
    """AutoGraph reads it, and a traceback shows it."""
    text = "def branch(x):\n    if x > 0:\n        return x * 2\n    return x\n"
    file = tmp_path / "script.py"
    if place == "file":
        file.write_text(text)
    else:
        linecache.cache[str(file)] = (len(text), None, text.splitlines(True), str(file))
    names: dict = {"__name__": "__main__"}
    exec(compile(text, str(file), "exec"), names)

    def traced(branch) -> float:
        import tensorflow as tf

        return float(tf.function(branch)(tf.constant(3.0)))

    assert worker.call(traced, names["branch"]) == 6.0


def test_autograph_leaves_no_files_behind_even_where_it_is_killed(tmp_path: Path):
    def convert(number: int = 0) -> list[str]:
        import tensorflow as tf

        def double_above(x, least):
            if x > least:
                return doubled(x)
            return x

        def doubled(x):
            return x * 2

        assert float(tf.function(double_above)(tf.constant(2.0), 1.0)) == 4.0
        if number:
            os.kill(os.getpid(), number)
        return [name for name in sys.modules if name.startswith("__autograph_generated")]

    places = {"TMPDIR": str(tmp_path), "PYTHONPYCACHEPREFIX": str(tmp_path)}
    assert worker.call(convert, environment=places) != []
    assert worker.run(convert, signal.SIGKILL, environment=places).verdict is Verdict.KILLED
    assert list(tmp_path.rglob("*autograph_generated*")) == []


def test_an_error_in_graph_code_shows_the_lines_of_the_person():
    def fail() -> None:
        import tensorflow as tf

        @tf.function
        def step(x):
            if x > 0:
                x = x + not_defined_anywhere  # noqa: F821
            return x

        step(tf.constant(1.0))

    assert "x = x + not_defined_anywhere" in worker.run(fail).message


@pytest.mark.slow
def test_the_training_step_is_converted_ahead_while_the_server_is_idle():
    def cached() -> bool:
        from tensorflow.python.autograph.impl import api

        from shared.training.step import Stepper

        return api._TRANSPILER._cache.has(Stepper._clipped, _options())

    def _options():
        from tensorflow.python.autograph.core.converter import ConversionOptions

        return ConversionOptions(recursive=True, user_requested=False, optional_features=())

    deadline = time.monotonic() + 30
    while not worker.call(cached) and time.monotonic() < deadline:
        time.sleep(0.3)
    assert worker.call(cached)


def test_an_error_for_people_arrives_as_it_is():
    def refuse() -> None:
        raise InputError("No column close.", "Name it.")

    with pytest.raises(InputError) as caught:
        worker.call(refuse)
    assert caught.value.remedy == "Name it."
    assert worker.run(refuse).message == "No column close."


def test_an_error_that_cannot_travel_is_told_in_words():
    def odd() -> None:
        class Odd(Exception):
            def __init__(self, a, b):
                super().__init__("two needed")

        raise Odd(1, 2)

    outcome = worker.run(odd)
    assert outcome.verdict is Verdict.BUG
    assert "two needed" in outcome.message
    with pytest.raises(WorkerError, match=r"odd failed in its child process: .*Odd: two needed") as caught:
        worker.call(odd)
    assert "File" not in caught.value.message
    assert "in odd" in str(caught.value.__cause__)  # for --debug


@pytest.mark.slow
def test_tensorflow_stays_out_of_the_parent_in_values_and_errors():
    code = """
import sys
from shared import worker

def value():
    import tensorflow as tf
    return tf.ones([2])

def error():
    import tensorflow as tf
    raise tf.errors.InvalidArgumentError(None, None, "shapes differ")

print(worker.run(value).message, worker.run(error).message)
sys.exit("tensorflow" in sys.modules)
"""
    # In a process of its own: here another test may have imported TensorFlow.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Return plain data" in done.stdout
    assert "shapes differ" in done.stdout


def test_a_value_that_cannot_travel_is_told_with_what_to_return_instead():
    with pytest.raises(WorkerError, match="lock, cannot leave its child process") as caught:
        worker.call(threading.Lock)
    assert "plain data" in caught.value.remedy


def test_sys_exit_in_a_child_does_not_end_the_parent():
    with pytest.raises(WorkerError, match="SystemExit"):
        worker.call(lambda: sys.exit(3))


def test_os_exit_is_told_with_its_code():
    outcome = worker.run(lambda: os._exit(3))
    assert outcome.verdict is Verdict.BUG
    assert "exit code 3" in outcome.message


def test_a_hang_is_stopped_at_its_limit_and_the_place_is_named():
    def hang() -> None:
        time.sleep(60)

    outcome = worker.run(hang, timeout=0.5)
    assert outcome.verdict is Verdict.TIMED_OUT
    assert "in hang" in outcome.message
    with pytest.raises(WorkerError, match=r"limit of 0\.2 s"):
        worker.call(hang, timeout=0.2)


def _saver() -> Callable[[Path], None]:
    # A function within one travels by value: the child need not import this module, and pytest with it.
    def save_when_asked(file: Path) -> None:
        """What the training loop does: at SIGTERM it notes the wish, saves, and raises."""
        asked = []
        signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
        progress.emit("working", 0)
        while not asked:
            time.sleep(0.01)
        logging.getLogger("casebook.test").warning("saving")
        progress.emit("saving", 1)
        time.sleep(0.3)
        file.write_text("saved")
        raise SystemExit("saved and left")

    return save_when_asked


save_when_asked = _saver()


def test_at_its_limit_a_child_gets_time_to_save(tmp_path: Path, caplog):
    file = tmp_path / "state"
    outcome = worker.run(save_when_asked, file, timeout=1, grace=20)
    assert outcome.verdict is Verdict.TIMED_OUT
    assert "save_when_asked" in outcome.message  # where it stood at the limit
    assert file.read_text() == "saved"
    assert outcome.seconds < 10
    assert "saving" in caplog.messages


def test_without_grace_it_is_killed_at_its_limit(tmp_path: Path):
    assert worker.run(save_when_asked, tmp_path / "state", timeout=0.3).verdict is Verdict.TIMED_OUT
    assert not (tmp_path / "state").exists()


def test_grace_has_an_end_and_who_handles_nothing_needs_none():
    def deaf() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)

    started = time.monotonic()
    assert worker.run(deaf, timeout=0.2, grace=0.5).verdict is Verdict.TIMED_OUT
    assert worker.run(time.sleep, 60, timeout=0.2, grace=60).verdict is Verdict.TIMED_OUT
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, OSError])
def test_an_interrupted_caller_hears_on_while_the_child_saves(kind, tmp_path: Path, caplog):
    heard = []

    def hear(report: progress.Progress) -> None:
        heard.append(report.label)
        if report.label == "working":
            raise kind
        if kind is OSError:
            raise kind  # a listener that is broken stays broken

    with progress.listening(hear), pytest.raises(kind):
        worker.run(save_when_asked, tmp_path / "state", grace=20)
    assert heard == ["working", "saving"]
    assert "saving" in caplog.messages
    assert "A second interruption ends it at once" in caplog.text
    assert (tmp_path / "state").read_text() == "saved"


@pytest.mark.parametrize("grace", [0, 20])
def test_a_second_interruption_kills_at_once_and_so_does_the_first_without_grace(grace, tmp_path: Path):
    heard = []

    def hear(report: progress.Progress) -> None:
        heard.append(report.label)
        raise KeyboardInterrupt

    with progress.listening(hear), pytest.raises(KeyboardInterrupt):
        worker.call(save_when_asked, tmp_path / "state", grace=grace)
    assert heard == (["working", "saving"] if grace else ["working"])
    assert not (tmp_path / "state").exists()


def test_a_crash_in_native_code():
    def crash() -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    outcome = worker.run(crash)
    assert outcome.verdict is Verdict.KILLED
    assert "SIGSEGV" in outcome.message
    assert "in crash" in outcome.message


def test_a_small_process_killed_from_outside_is_not_out_of_memory():
    outcome = worker.run(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert outcome.verdict is Verdict.KILLED
    assert "SIGKILL" in outcome.message


@pytest.mark.parametrize(
    ("exit", "printed", "limited", "host_kills", "verdict"),
    [
        (Exit(-9, 1 << 20), "", False, 1, Verdict.OUT_OF_MEMORY),
        (Exit(-9, 1 << 50), "", False, 0, Verdict.OUT_OF_MEMORY),
        (Exit(-9, 1 << 20), "", False, 0, Verdict.KILLED),
        (Exit(-6, None), "terminate called: std::bad_alloc", True, 0, Verdict.OUT_OF_MEMORY),
        (Exit(-6, None), "pthread_create: Resource temporarily unavailable", True, 0, "out of memory"),
        (Exit(-6, None), "pthread_create: Resource temporarily unavailable", False, 0, "killed"),
        (Exit(-6, None), "Thread x creation via pthread_create() failed.", True, 0, "out of memory"),
        (Exit(-11, None), "", False, 0, Verdict.KILLED),
        (Exit(1, None), "ImportError", False, 0, Verdict.BUG),
        (None, "", False, 0, Verdict.KILLED),
    ],
)
def test_verdict_on_a_child_that_left_without_an_answer(exit, printed, limited, host_kills, verdict):
    assert why(exit, printed, limited, host_kills)[0] == verdict


def test_memory_limit_of_numpy():
    outcome = worker.run(lambda: np.ones(1 << 28).sum(), memory_bytes=256 << 20)
    assert outcome.verdict is Verdict.OUT_OF_MEMORY
    with pytest.raises(WorkerError, match="ran out of memory"):
        worker.call(lambda: np.ones(1 << 28).sum(), memory_bytes=256 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["Dense", "Conv1D"])
def test_memory_limit_of_tensorflow_inside_fit(layer):
    """One ends by an exception that is known by its type only, the other by SIGSEGV in oneDNN."""

    def fit() -> None:
        import keras

        wide = keras.layers.Dense(1 << 16) if layer == "Dense" else keras.layers.Conv1D(1 << 14, 1)
        model = keras.Sequential([wide, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.ones([4096, 8] if layer == "Dense" else [4096, 4, 8], "float32")
        model.fit(x, np.ones([4096, *x.shape[1:-1], 1]), batch_size=4096, verbose=0)

    outcome = worker.run(fit, memory_bytes=700 << 20, timeout=60)
    assert outcome.verdict is Verdict.OUT_OF_MEMORY


def test_a_flood_of_output_is_kept_to_its_tail():
    def flood() -> None:
        for number in range(100_000):
            print(f"line {number} " + "x" * 40)
        raise RuntimeError("after the flood")

    outcome = worker.run(flood, timeout=60)
    assert outcome.verdict is Verdict.BUG
    assert "line 99999" in outcome.message
    assert len(outcome.message) < 40_000


def test_output_stays_off_the_terminal_unless_asked_for(capfd, monkeypatch):
    def speak() -> None:
        os.write(1, b"from native code\n")
        print("from python", file=sys.stderr)

    worker.call(speak)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("CASEBOOK_DEBUG", "1")
    worker.call(speak)
    shown = capfd.readouterr().err
    assert "from native code" in shown
    assert "from python" in shown


def test_progress_and_logs_arrive_in_the_calling_thread(caplog):
    def work() -> str:
        progress.emit("epochs", 1, 3, note="best so far", loss=0.5)
        logging.getLogger("casebook.test").info("epoch %d", 1)
        logging.getLogger("casebook.test").debug("not wanted")
        logging.getLogger("elsewhere").warning("old style")
        return "done"

    heard, threads = [], set()

    def hear(report: progress.Progress) -> None:
        heard.append(report)
        threads.add(threading.current_thread())

    results = []

    def flow() -> None:
        with progress.listening(hear):
            results.append(worker.call(work))

    with caplog.at_level(logging.INFO, logger="casebook.test"):
        thread = threading.Thread(target=flow)
        thread.start()
        thread.join()
    assert results == ["done"]
    assert heard == [progress.Progress("epochs", 1, 3, {"loss": 0.5}, "best so far")]
    assert threads == {thread}
    assert [(r.name, r.getMessage()) for r in caplog.records] == [
        ("casebook.test", "epoch 1"),
        ("elsewhere", "old style"),
    ]


def test_the_child_lives_where_the_parent_lives_now(tmp_path: Path, monkeypatch):
    worker.warm_up()
    (tmp_path / "made_later.py").write_text("VALUE = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CASEBOOK_RUNS", "/set/after/the/server")
    monkeypatch.delenv("HOME", raising=False)

    def look() -> tuple:
        import made_later

        wanted = ("CASEBOOK_RUNS", "TF_NUM_INTRAOP_THREADS", "HOME", "TF_CONFIG")
        return os.getcwd(), made_later.VALUE, [os.environ.get(name) for name in wanted]

    monkeypatch.setenv("TF_CONFIG", "{}")
    changes = {"TF_NUM_INTRAOP_THREADS": "1", "TF_CONFIG": None, "NEVER_SET": None}
    folder, value, variables = worker.call(look, environment=changes)
    assert Path(folder) == tmp_path
    assert value == 5
    assert variables == ["/set/after/the/server", "1", None, None]
    assert "TF_NUM_INTRAOP_THREADS" not in os.environ


def test_three_children_at_once():
    outcomes = []
    threads = [
        threading.Thread(target=lambda n=n: outcomes.append(worker.run(lambda: (time.sleep(0.2), n)[1])))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcome.value for outcome in outcomes) == [0, 1, 2]


def test_together_all_run_at_the_same_time(tmp_path: Path):
    def meet(place: int, of: int) -> str:
        (tmp_path / str(place)).touch()
        while len(list(tmp_path.iterdir())) < of:
            time.sleep(0.01)
        return os.environ["PLACE"]

    calls = [worker.Call(meet, (place,), {"of": 3}, {"PLACE": f"p{place}"}) for place in range(3)]
    outcomes = worker.together(calls, timeout=60)
    assert [outcome.value for outcome in outcomes] == ["p0", "p1", "p2"]
    assert sorted(outcome.order for outcome in outcomes) == [0, 1, 2]
    assert worker.first_failure(outcomes) is None
    assert worker.together([]) == []


def test_together_only_the_first_is_heard_in_full(caplog):
    def speak(place: int) -> None:
        logger = logging.getLogger("casebook.test")
        logger.info("100 %% of %d", place)
        logger.warning("careful %d", place)
        progress.emit(f"epochs of {place}", 1)

    heard = []
    with progress.listening(heard.append), caplog.at_level(logging.INFO, "casebook.test"):
        worker.together([worker.Call(speak, (place,)) for place in range(2)], timeout=60)
    assert [report.label for report in heard] == ["epochs of 0"]
    assert sorted(caplog.messages) == ["100 % of 0", "careful 0", "worker 1: careful 1"]


@pytest.mark.parametrize("how", ["error", "kill"])
def test_together_the_first_to_fail_is_named_and_the_others_end(how, tmp_path: Path):
    def ends(place: int) -> str:
        (tmp_path / str(place)).touch()
        while len(list(tmp_path.iterdir())) < 3:
            time.sleep(0.01)
        if place == 1:
            if how == "error":
                raise InputError("Row 7 is damaged.")
            os.kill(os.getpid(), signal.SIGKILL)
        if place == 0:
            time.sleep(0.3)
            raise RuntimeError("connection to a peer is lost")
        time.sleep(600)
        return "never"

    started = time.monotonic()
    outcomes = worker.together([worker.Call(ends, (place,)) for place in range(3)], timeout=300, linger=1.0)
    assert time.monotonic() - started < 60
    assert worker.first_failure(outcomes) == 1
    assert outcomes[1].verdict is (Verdict.BUG if how == "error" else Verdict.KILLED)
    assert [outcome.order for outcome in outcomes] == [1, 0, 2]
    assert "peer is lost" in outcomes[0].message
    assert outcomes[2].verdict is Verdict.KILLED
    assert "because worker 1 had failed" in outcomes[2].message
    assert "in ends" in outcomes[2].message  # where it hung


def test_together_have_one_limit_and_time_to_save(tmp_path: Path):
    calls = [worker.Call(save_when_asked, (tmp_path / str(place),)) for place in range(2)]
    outcomes = worker.together(calls, timeout=1, grace=20)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.TIMED_OUT] * 2
    assert [(tmp_path / str(place)).read_text() for place in range(2)] == ["saved"] * 2


def test_together_interrupted_all_get_time_to_save(tmp_path: Path):
    def hear(report: progress.Progress) -> None:
        deadline = time.monotonic() + 20
        while report.label == "working" and len(list(tmp_path.glob("ready-*"))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if report.label == "working":
            raise KeyboardInterrupt

    def work(place: int) -> None:
        threading.Timer(0.1, (tmp_path / f"ready-{place}").touch).start()
        save_when_asked(tmp_path / str(place))

    with progress.listening(hear), pytest.raises(KeyboardInterrupt):
        worker.together([worker.Call(work, (place,)) for place in range(2)], grace=20)
    assert [(tmp_path / str(place)).read_text() for place in range(2)] == ["saved"] * 2


def test_two_children_draw_different_random_numbers():
    first, second = (worker.call(lambda: np.random.rand(4).tolist()) for _ in range(2))  # noqa: NPY002
    assert first != second


@pytest.mark.slow
def test_sigterm_is_the_functions_own_whatever_the_parent_has_done_with_it(monkeypatch):
    monkeypatch.setattr(worker, "PRELOAD", ("numpy",))  # a server that inherits what is set here
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        found = worker.call(lambda: (signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(0, ())))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.signal(signal.SIGTERM, before)
    assert found == (signal.SIG_DFL, set())


@pytest.mark.slow
def test_a_dead_server_is_replaced_and_takes_its_child_along(monkeypatch):
    monkeypatch.setattr(worker, "PRELOAD", ())  # quick to start, and not the other tests' server
    worker.call(int)
    server = worker._current
    os.kill(server._process.pid, signal.SIGKILL)
    assert worker.call(lambda: 1) == 1
    assert worker._current is not server

    def kill_server_and_wait() -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    assert worker.run(kill_server_and_wait, timeout=30).verdict is Verdict.KILLED  # not: timed out
    assert worker.call(lambda: 2) == 2


@pytest.mark.slow
def test_a_variable_read_at_import_gets_a_server_of_its_own(monkeypatch):
    monkeypatch.setattr(worker, "PRELOAD", ())
    worker.call(int)
    server = worker._current
    assert worker.call(lambda: os.environ["XLA_FLAGS"], environment={"XLA_FLAGS": ""}) == ""
    assert worker._current is not server
    server._process.wait(10)  # it leaves by itself


@pytest.mark.slow
def test_a_server_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr(worker, "PRELOAD", ())
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(WorkerError, match="No module named"):
        worker.run(int)


SCRIPT = """
import os, sys, time
print("started", flush=True)
from shared import worker
worker.PRELOAD = ()
class Point:
    def __init__(self, x): self.x = x
def double(point):
    return Point(point.x * 2)
result = worker.call(double, Point(4))
assert isinstance(result, Point), type(result)
print(result.x)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "stdin", "-c"])
def test_main_without_a_guard_is_not_run_again(how, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = {"script": [str(script)], "stdin": ["-"], "-c": ["-c", SCRIPT]}[how]
    done = subprocess.run(
        [sys.executable, *arguments],
        input=SCRIPT if how == "stdin" else None,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.stdout == "started\n8\n", done.stderr


PARENT = textwrap.dedent(
    """
    import os, signal, subprocess, sys, threading, time
    from shared import worker, progress
    worker.PRELOAD = ()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    def hang():
        grandchild = subprocess.Popen(["sleep", "300"])
        progress.emit(f"{os.getpid()} {os.getppid()} {grandchild.pid}", 0)
        %s
    def show(report):
        print(report.label, flush=True)
    def flow():
        with progress.listening(show):
            worker.run(hang)
    %s
    """
)
SLEEP = "time.sleep(300)"
DEAF = "import ctypes; ctypes.PyDLL(None).sleep(300)"  # holds the interpreter: no thread can run
THREAD = "t = threading.Thread(target=flow, daemon=True); t.start(); t.join()"


@pytest.mark.soak
@pytest.mark.parametrize("kill_with", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("body", [SLEEP, DEAF], ids=["asleep", "deaf"])
@pytest.mark.parametrize("place", ["flow()", THREAD], ids=["main", "thread"])
def test_no_orphan_is_left_by_a_parent_that_ends(kill_with, body, place):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT % (body, place)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        assert all(_lives(pid) for pid in pids)
        parent.send_signal(kill_with)
        parent.wait(15)
    deadline = time.monotonic() + 10
    while any(_lives(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in pids if _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_a_full_disk_is_not_taken_for_memory() -> None:
    """TensorFlow tells both as a resource that is exhausted."""
    assert is_out_of_memory(MemoryError("no room"))
    assert not is_out_of_memory(MemoryError("RESOURCE_EXHAUSTED: model.keras; No space left on device"))


def test_of_an_error_in_a_graph_its_last_line_is_told() -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in take\n    self.step()\n'
        "errors_impl.InvalidArgumentError: Graph execution error:\n\n"
        "Detected at node while/GatherV2 defined at (most recent call last):\n"
        '  File "a.py", line 1, in fit\n\nindices[0,0] = 99 is not in [0, 10)\n'
        "\t [[{{node while/GatherV2}}]] [Op:__inference_many_4867]\nThe last it printed:\n    noise"
    )
    assert last_words(traceback).splitlines() == [
        "errors_impl.InvalidArgumentError: Graph execution error:",
        "indices[0,0] = 99 is not in [0, 10)",
    ]


def test_what_tensorflow_always_prints_is_not_told_as_a_cause() -> None:
    usual = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "E0000 00:00:1796061487.085888 23303 cuda_platform.cc:52] failed call to cuInit: INTERNAL: "
        "CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)\n"
    )
    assert quoted(usual) == ""
    assert quoted(usual + "free(): invalid size\n") == "\nThe last it printed:\n    free(): invalid size"
