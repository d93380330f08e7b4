"""The person's release command has one owner: the outermost block that a run happens in.

On the command line that is the command, so that the machine is released also where the flow never
opened the run, or ended after it. Where Prefect starts a flow by itself (``casebook serve``, a
worker) it is the run. A kill -9 leaves no owner: nothing can be run any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from shared import accelerator
from shared.config import AcceleratorSection
from shared.errors import BusyError

_owned: ContextVar[bool] = ContextVar("casebook_release_owned", default=False)


@contextmanager
def at_the_end(section: AcceleratorSection) -> Iterator[None]:
    """Runs the release command once, at the end of the outermost of nested blocks, however it ends.

    Except where the block found that another process works on the run: the machine is still needed.
    """
    if _owned.get():
        yield
        return
    token = _owned.set(True)
    over = True
    try:
        yield
    except BusyError:
        over = False
        raise
    finally:
        _owned.reset(token)
        if over:
            accelerator.release(section)
