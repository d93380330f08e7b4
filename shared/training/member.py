"""One member of one fold, trained from data to predictions on disk. Runs in a child process.

What it leaves in its folder::

    history.jsonl     one line an epoch, of all phases, and of steps in between
    weights.npz       every variable of the last phase's model at its best epoch, by path
    validation.npz    predictions: keys, values, truth[, groups]
    test.npz          the same for the test split
    done.json         what train_member returns; written last
    checkpoints/      of the phase that is running, and the best weights of those that are done
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared import accelerator, contract, files, lock
from shared.plan import ExecutionPlan

if TYPE_CHECKING:
    import keras


def train_member(
    domain: str,
    prepared: str,
    config: Mapping[str, Any],
    fold: int,
    seed: int,
    plan: Mapping[str, Any],
    folder: str,
    *,
    start: str | None = None,
    shuffled_labels: bool = False,
    lent: bool = False,
) -> dict[str, Any]:
    """Trains all phases, resuming from what ``folder`` holds, and predicts validation and test.

    Args:
        config: Nested plain data for the domain's ``Config``.
        fold: Position in ``domain.folds``.
        plan: ``ExecutionPlan.to_dict()``.
        folder: Of this member alone; made here.
        start: Folder of a published model whose weights training starts from, where it may
            (``shared/training/warm_start.py``); None: from new weights.
        shuffled_labels: Train and validate on labels dealt out at random, for the guard that
            nothing can be learnt from them. Test labels stay. Always from new weights.
        lent: The caller holds the accelerator for all the workers that it has started here.

    At SIGTERM it writes a checkpoint after the steps at hand, and raises ``Stopped``.

    Under several workers (``TF_CONFIG``) every one of them calls this with the same arguments; the
    chief reads and writes ``folder``, the others return the same and write nothing.

    Returns:
        Plain data: ``phases`` (list of their results without history), ``epochs``, ``best``
        (monitor and value of the last phase), ``seconds``, ``samples_per_second``,
        ``input_bound_share``, ``advice``, ``device``, ``device_name``, ``replicas``, ``placement``,
        ``precision``, ``batch_size``, ``parameters``, ``determinism``, ``started_from``. Where
        ``done.json`` is there already, it at once.
    """
    home = Path(folder)
    if (home / "done.json").exists():
        return dict(files.read_json(home / "done.json"))
    known = contract.find(domain)
    settings = known.Config.model_validate(dict(config))
    execution = ExecutionPlan.from_dict(plan)
    home.mkdir(parents=True, exist_ok=True)
    # Here, not at the top: the process that only names this function never imports TensorFlow.
    from shared.training import stopping
    from shared.training.chain import Chain

    with (
        lock.lent() if lent else nullcontext(),
        accelerator.opened(settings.accelerator, plan=execution) as device,
        stopping.listening() as stop,
    ):
        return Chain(
            known, Path(prepared), settings, fold, seed, execution, home, device, shuffled_labels, start, stop
        ).run()


def rebuild(
    domain: contract.Domain, prepared: Path, config: Any, fold: contract.Fold, folder: Path
) -> keras.Model:
    """The trained model of a member, built anew under the current dtype policy.

    Args:
        config: An instance of the domain's ``Config``.
        folder: That :func:`train_member` filled.

    Raises:
        CasebookError: The weights belong to another model: the domain's code has changed since.
    """
    from shared.training import building

    return building.rebuild(domain, prepared, config, fold, folder)
