"""A Prefect server of our own, in a process that lives as long as ours and comes back if it dies.

``prefect``'s ephemeral server will not do for schedules: it has no scheduler, and every
flow run's process would start another one. Run as a module, this file is that process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from shared.errors import CasebookError, InputError

PREFERRED_PORT = 4200
START_SECONDS = 180.0


class Server:
    """Prefect's API and interface on this machine only, restarted on the same port when it dies.

    Args:
        log: File that the server's output goes to.
        port: Port on 127.0.0.1; default 4200, or a free one where that is taken.

    Raises:
        InputError: The port asked for is taken.
        CasebookError: On entering: the server did not answer in time; has the end of its log.
    """

    def __init__(self, log: Path, port: int | None = None) -> None:
        if port is not None and not _is_free(port):
            raise InputError(f"Port {port} is taken.", "Give another --port, or none to take a free one.")
        self.port = port or (PREFERRED_PORT if _is_free(PREFERRED_PORT) else _any_free())
        self.log = log
        self.restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="casebook-server-keeper", daemon=True)

    @property
    def url(self) -> str:
        """The API's address, as PREFECT_API_URL takes it."""
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def __enter__(self) -> Server:
        self._process = self._spawn()
        try:
            self._wait()
        except BaseException:
            self._end()
            raise
        self._keeper.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join(timeout=10)
        self._end()

    def _spawn(self) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "PREFECT__SERVER_FINAL": "1",
            # Kept in files: leases in memory would leave a dead run's slot taken after a restart.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
            "PREFECT_UI_API_URL": self.url,
        }
        environment.pop("PREFECT_API_URL", None)
        with self.log.open("ab") as sink:
            return subprocess.Popen(
                [sys.executable, "-m", "pipelines.embedded", str(self.port), str(os.getpid())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # a terminal's Ctrl-C ends the runs first, then us, then this
            )

    def _wait(self) -> None:
        import httpx

        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        with httpx.Client(trust_env=False, timeout=5) as client:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    break
                try:
                    if client.get(f"{self.url}/health").status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                time.sleep(0.2)
        tail = self.log.read_text(encoding="utf-8", errors="replace")[-800:].strip()
        raise CasebookError(
            f"The Prefect server did not start on port {self.port}. The end of its log: {tail or 'nothing'}",
            f"See {self.log}; or name a server of yours by PREFECT_API_URL.",
        )

    def _keep(self) -> None:
        while not self._stopping.wait(1.0):
            if self._process is not None and self._process.poll() is not None:
                self.restarts += 1
                print(
                    f"The Prefect server ended ({self._process.returncode}); it is started again.",
                    file=sys.stderr,
                )
                self._process = self._spawn()
                self._stopping.wait(min(2.0**self.restarts, 60.0))

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=8)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _any_free() -> int:
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
