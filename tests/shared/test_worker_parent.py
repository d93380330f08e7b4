"""Parents that are interrupted, killed, short of descriptors, or in a flow: no orphan, no trace, a clean terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import resource
import signal
import subprocess
import sys
import termios
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.soak

MARK = "CASEBOOK_STRESS_MARK"
NOTHING_PRELOADED = "from shared import worker; worker.PRELOAD = ('numpy',)\n"


def eventually(holds: Callable[[], bool], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def shared_memory() -> list[str]:
    return sorted(os.listdir("/dev/shm"))


class Place:
    """Where a parent runs: a folder for temporary files and a mark on whatever descends from it."""

    def __init__(self, folder: Path) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.shared_memory = shared_memory()

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, MARK: self.mark, "TMPDIR": str(self.temporary), "FOLDER": str(self.folder)}

    def descendants(self) -> list[str]:
        """Processes that were started from the parent, zombies of them included, however far they have gone."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    found.append(f"{process.pid} {process.status()} {process.cmdline()}")
        return found

    def nothing_is_left(self) -> None:
        assert eventually(lambda: self.descendants() == []), self.descendants()
        assert list(self.temporary.iterdir()) == []
        assert shared_memory() == self.shared_memory


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    for line in found.descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)


class Terminal:
    """A terminal of its own with a program in its foreground, as a person's shell would start it."""

    def __init__(self, code: str, place: Place) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.slave = slave

        def own_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=own_terminal,
            env=place.environment,
        )
        os.set_blocking(self.master, False)
        self._shown = b""

    def shown(self) -> str:
        with contextlib.suppress(BlockingIOError, OSError):
            while piece := os.read(self.master, 65536):
                self._shown += piece
        return self._shown.decode()

    def wait_for(self, text: str) -> None:
        assert eventually(lambda: text in self.shown(), 60), self.shown()

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(place: Place) -> Iterator[Callable[[str], Terminal]]:
    opened: list[Terminal] = []

    def open_one(code: str) -> Terminal:
        opened.append(Terminal(code, place))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


PARENT = textwrap.dedent(
    """
    import os, pathlib, signal, subprocess, sys, time
    from shared import progress, worker
    {setup}
    def leave(*_):
        sys.exit(143)
    signal.signal(signal.SIGTERM, leave)
    def work(place=0):
        def save(*_):
            time.sleep(0.5)
            pathlib.Path(os.environ["FOLDER"], f"saved-{{place}}").touch()
            raise SystemExit("saved")
        signal.signal(signal.SIGTERM, save)
        subprocess.Popen(["sleep", "300"])
        print("what a child prints does not show")
        {inside}
        progress.emit(f"working", 0)
        time.sleep(300)
    with progress.listening(lambda report: print(report.label, flush=True)):
        {call}
    """
)
TENSORFLOW = "import tensorflow as tf; tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64]))"
NESTED = "worker.PRELOAD = ('numpy',); progress.emit('working', 0); worker.run(time.sleep, 300)"
LIGHT = "worker.PRELOAD = ('numpy',)"
RUN = "worker.run(work, grace={grace})"
TOGETHER = "worker.together([worker.Call(work, (place,)) for place in range(2)], grace={grace})"


@pytest.mark.parametrize("how", ["ctrl-c", "sigterm", "sigkill"])
@pytest.mark.parametrize(
    ("setup", "inside", "call", "grace"),
    [
        (LIGHT, "pass", RUN, 0),
        (LIGHT, "pass", RUN, 20),
        ("", TENSORFLOW, RUN, 20),
        (LIGHT, NESTED, RUN, 0),
        (LIGHT, NESTED, RUN, 20),
        (LIGHT, "pass", TOGETHER, 0),
        (LIGHT, "pass", TOGETHER, 20),
    ],
    ids=["run", "run+grace", "tensorflow", "nested", "nested+grace", "together", "together+grace"],
)
def test_a_parent_that_is_ended_leaves_nothing(
    how: str,
    setup: str,
    inside: str,
    call: str,
    grace: int,
    place: Place,
    terminal: Callable[[str], Terminal],
) -> None:
    shell = terminal(PARENT.format(setup=setup, inside=inside, call=call.format(grace=grace)))
    shell.wait_for("working")
    time.sleep(0.3)  # the second of two, and a nested server, are under way too
    if how == "ctrl-c":
        shell.press_ctrl_c()
    else:
        shell.process.send_signal(signal.SIGTERM if how == "sigterm" else signal.SIGKILL)
    expected = {"ctrl-c": -signal.SIGINT, "sigterm": 143, "sigkill": -signal.SIGKILL}
    assert shell.process.wait(30) == expected[how]
    saved = sorted(file.name for file in place.folder.glob("saved-*"))
    wanted = ["saved-0", "saved-1"] if call is TOGETHER else ["saved-0"]
    assert saved == (wanted if grace and how != "sigkill" else [])
    place.nothing_is_left()
    assert termios.tcgetattr(shell.slave) == shell.before
    assert "does not show" not in shell.shown()
    if how == "ctrl-c":
        assert ("up to 20 s to save" in shell.shown()) == bool(grace)


@pytest.mark.parametrize("wait", [0.3, 0.8, 1.5])
def test_a_parent_killed_while_its_server_starts_leaves_nothing(
    wait: float, place: Place, terminal: Callable[[str], Terminal]
) -> None:
    shell = terminal(
        "import time\nfrom shared import worker\nprint('asks', flush=True)\nworker.run(int)\ntime.sleep(60)"
    )
    shell.wait_for("asks")
    time.sleep(wait)
    shell.process.kill()
    shell.process.wait()
    place.nothing_is_left()


def test_a_second_ctrl_c_ends_at_once(place: Place, terminal: Callable[[str], Terminal]) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    shell = terminal(PARENT.format(setup=LIGHT, inside=deaf, call=RUN.format(grace=300)))
    shell.wait_for("working")
    shell.press_ctrl_c()
    shell.wait_for("to save")
    time.sleep(0.3)
    assert shell.process.poll() is None
    shell.press_ctrl_c()
    assert shell.process.wait(15) == -signal.SIGINT
    place.nothing_is_left()


# --- what a parent lacks ----------------------------------------------------------------------

SHORT = textwrap.dedent(
    """
    import threading, time
    from shared import worker
    worker.PRELOAD = ("numpy",)
    def outer():
        worker.PRELOAD = ("numpy",)
        return worker.call(int)
    for number in range(30):
        assert worker.call(lambda: number) == number
    assert [o.verdict.value for o in worker.together([worker.Call(time.sleep, (0.1,))] * 4)] == ["ok"] * 4
    threads = [threading.Thread(target=worker.call, args=(time.sleep, 0.2)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worker.run(time.sleep, 60, timeout=0.2).verdict.value == "timed out"
    assert worker.call(outer) == 0
    print("all well")
    """
)


def test_sixty_four_open_files_are_enough(place: Place) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHORT],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "all well\n", done.stderr
    assert done.stderr == ""
    place.nothing_is_left()


def test_too_few_open_files_are_told_with_the_remedy(place: Place) -> None:
    code = NOTHING_PRELOADED + textwrap.dedent(
        """
        import os, resource
        from shared.errors import WorkerError
        worker.call(int)
        before = len(os.listdir("/proc/self/fd"))
        for room in range(4):
            used = len(os.listdir("/proc/self/fd")) - 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + room, 64))
            try:
                worker.call(int)
            except WorkerError as error:
                assert "Too many open files" in error.message and "ulimit -n" in error.remedy
                print("told")
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            assert len(os.listdir("/proc/self/fd")) == before
        assert worker.call(int) == 0
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "told\n" * 4, done.stderr
    place.nothing_is_left()


def test_a_server_without_room_makes_way_for_another(place: Place) -> None:
    code = NOTHING_PRELOADED + textwrap.dedent(
        """
        import resource
        worker.call(int)
        first = worker._current
        used = len(__import__("os").listdir(f"/proc/{first._process.pid}/fd"))
        resource.prlimit(first._process.pid, resource.RLIMIT_NOFILE, (used + 1, used + 1))
        assert worker.call(int) == 0
        assert worker._current is not first
        print("all well")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "all well\n", done.stderr
    place.nothing_is_left()


@pytest.mark.parametrize("closed", [(0,), (1, 2), (0, 1, 2)], ids=str)
def test_a_parent_without_standard_streams(closed: tuple[int, ...], place: Place) -> None:
    code = NOTHING_PRELOADED + textwrap.dedent(
        """
        import ctypes, os, pathlib
        def speak():
            os.write(1, b"out")
            os.write(2, b"err")
            return "answer"
        worker.call(int)
        ctypes.CDLL(None).puts(b"a library's print goes nowhere, and into no socket of ours")
        ctypes.CDLL(None).fflush(None)
        assert worker.call(speak) == "answer"
        pathlib.Path(os.environ["FOLDER"], "done").touch()
        """
    )
    subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=lambda: [os.close(descriptor) for descriptor in closed],
        env={**place.environment, "CASEBOOK_DEBUG": "1"},
        timeout=60,
        check=False,
    )
    assert (place.folder / "done").exists()
    place.nothing_is_left()


def test_a_fork_of_the_parent_does_not_keep_its_children_alive(place: Place) -> None:
    """As a pool of processes makes them: they would hold the sockets by which children know that it is gone."""
    code = NOTHING_PRELOADED + textwrap.dedent(
        """
        import os, threading, time
        threading.Thread(target=worker.run, args=(time.sleep, 300), daemon=True).start()
        time.sleep(2)
        if os.fork() == 0:
            time.sleep(6)
            os._exit(0)
        print(worker._current._process.pid, flush=True)
        time.sleep(300)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env=place.environment, stdout=subprocess.PIPE, text=True
    ) as it:
        assert it.stdout is not None
        server = int(it.stdout.readline())
        it.kill()
        assert eventually(lambda: not psutil.pid_exists(server), 3)
    place.nothing_is_left()


# --- inside Prefect ---------------------------------------------------------------------------

FLOW = textwrap.dedent(
    """
    import os, signal, sys, threading, time
    from pipelines import prefect_setup
    prefect_setup.apply()
    from shared import progress, worker
    worker.PRELOAD = ("numpy",)
    from pipelines import embedded
    server = embedded.for_this_process()
    from prefect import flow, task, get_run_logger

    def work(number):
        import logging
        logging.getLogger("casebook").warning("from the child %d", number)
        progress.emit("step", number)
        return number * 2

    def crash():
        os.kill(os.getpid(), signal.SIGSEGV)

    @task
    def one(number):
        return worker.call(work, number)

    @task
    def bad():
        return worker.run(crash).verdict.value

    @flow
    def story():
        heard = []
        with progress.listening(lambda report: heard.append(report.done)):
            first = worker.call(work, 1)
            second = one(2)
        futures = [one.submit(number) for number in (3, 4, 5)]
        return [first, second, *(future.result() for future in futures), bad.submit().result(), heard]

    if server is not None:
        server.wait()
    print("RESULT", story(), flush=True)
    """
)


def test_inside_a_flow_a_task_and_the_threads_of_tasks(place: Place) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FLOW],
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "RESULT [2, 4, 6, 8, 10, 'killed', [1, 2]]" in done.stdout, done.stderr
    place.nothing_is_left()
