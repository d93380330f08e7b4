"""A Prefect server of our own, in a process that lives as long as ours and comes back if it dies.

Prefect can start one itself, but that one has no scheduler, dies of the terminal's Ctrl-C
before the run could tell it how it ended (and then Prefect asks it for more than a minute),
outlives a killed run, and starts only when the flow does. Run as a module, this file is the
process of the server.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType

from shared.errors import CasebookError, InputError

PREFERRED_PORT = 4200
START_SECONDS = 180.0


class Server:
    """Prefect's API on this machine only, restarted on the same port when it dies.

    Args:
        log: File that the server's output goes to.
        port: Port on 127.0.0.1; default a free one.
        schedules: Whether it also schedules runs and has Prefect's interface; else it only records.

    Raises:
        InputError: The port asked for is taken.
    """

    def __init__(self, log: Path, port: int | None = None, *, schedules: bool = False) -> None:
        if port is not None and not _is_free(port):
            raise InputError(f"Port {port} is taken.", "Give another --port, or none to take a free one.")
        preferred = PREFERRED_PORT if schedules and _is_free(PREFERRED_PORT) else None
        self.port = port or preferred or any_free_port()
        self.log = log
        self.schedules = schedules
        self.restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="casebook-server-keeper", daemon=True)

    @property
    def url(self) -> str:
        """The API's address, as PREFECT_API_URL takes it."""
        return f"http://127.0.0.1:{self.port}/api"

    def __enter__(self) -> Server:
        self.start()
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the process and returns at once."""
        self._process = self._spawn()
        self._keeper.start()

    def wait(self) -> None:
        """Returns when the server answers.

        Raises:
            CasebookError: It did not within :data:`START_SECONDS`, or ended again and again.
        """
        import httpx

        deadline = time.monotonic() + START_SECONDS
        with httpx.Client(trust_env=False, timeout=5) as client:
            while time.monotonic() < deadline and self.restarts < 2:
                try:
                    if client.get(f"{self.url}/health").status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                time.sleep(0.1)
        tail = self.log.read_text(encoding="utf-8", errors="replace")[-800:].strip()
        raise CasebookError(
            f"The Prefect server did not start on port {self.port}. The end of its log: {tail or 'nothing'}",
            f"See {self.log}; or name a server of yours by PREFECT_API_URL.",
        )

    def stop(self) -> None:
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join(timeout=10)
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _spawn(self) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "PREFECT__SERVER_FINAL": "1",
            # Kept in files: leases in memory would leave a dead run's slot taken after a restart.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        }
        environment.pop("PREFECT_API_URL", None)
        if self.schedules:
            environment["PREFECT_UI_API_URL"] = self.url
        else:
            environment |= {"PREFECT__SERVER_EPHEMERAL": "1", "PREFECT_UI_ENABLED": "0"}
        with self.log.open("ab") as sink:
            return subprocess.Popen(
                [sys.executable, "-m", "pipelines.embedded", str(self.port), str(os.getpid())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # a terminal's Ctrl-C ends the runs, then us, and this last
            )

    def _keep(self) -> None:
        while not self._stopping.wait(1.0):
            if self._process is not None and self._process.poll() is not None:
                self.restarts += 1
                self._process = self._spawn()
                self._stopping.wait(min(2.0**self.restarts, 60.0))


def for_this_process() -> Server | None:
    """Starts a server for the flow that this process is about to run, unless Prefect knows one; imports Prefect.

    It ends with this process. Call its :meth:`Server.wait` before the flow.
    """
    from prefect import context
    from prefect.settings import PREFECT_API_URL

    if PREFECT_API_URL.value():
        return None
    handle, log = tempfile.mkstemp(prefix="casebook-prefect-", suffix=".log")
    os.close(handle)
    server = Server(Path(log))
    server.start()

    def end() -> None:
        server.stop()
        server.log.unlink(missing_ok=True)

    # At exit, not at the end of the flow: Prefect's own exit handlers, which come later and
    # therefore run earlier, still send the last log lines.
    atexit.register(end)
    os.environ["PREFECT_API_URL"] = server.url
    # Read again, so that Prefect's threads see it too.
    context.GLOBAL_SETTINGS_CONTEXT = context.root_settings_context()
    return server


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def any_free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _leave_with(parent: int) -> None:
    """Ends this process soon after ``parent`` is gone, however it went."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def main(port: int, parent: int) -> None:
    """Serves until terminated, or until ``parent`` dies."""
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    import uvicorn

    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host="127.0.0.1",
        port=port,
        log_level="error",
        lifespan="on",
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
