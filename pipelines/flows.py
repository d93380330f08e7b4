"""Finding the flows of a domain: those spelled out for it here, or those of any domain."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.contract import find

if TYPE_CHECKING:
    from prefect import Flow


@dataclass(frozen=True)
class Flows:
    """The train and the predict flow of a domain.

    Attributes:
        train, predict: Prefect flows.
        given: Parameters that must be passed to both, beside their own.
    """

    train: Flow[..., dict[str, Any]]
    predict: Flow[..., dict[str, Any]]
    given: dict[str, Any]

    def run_train(self, **parameters: Any) -> dict[str, Any]:
        return self.train(**self.given, **parameters)

    def run_predict(self, **parameters: Any) -> dict[str, Any]:
        return self.predict(**self.given, **parameters)


def of(domain: str) -> Flows:
    """The flows of ``domain``; importing Prefect, which takes a second.

    Raises:
        InputError: No such domain.
    """
    find(domain)
    module = _spelled_out(domain)
    if module is not None:
        return Flows(module.train, module.predict, {})
    from pipelines import any_domain

    return Flows(
        train=any_domain.train.with_options(name=f"{domain}-train"),
        predict=any_domain.predict.with_options(name=f"{domain}-predict"),
        given={"domain": domain},
    )


def _spelled_out(domain: str) -> Any | None:
    name = f"pipelines.{domain}"
    if importlib.util.find_spec(name) is None:
        return None
    module = importlib.import_module(name)
    # A domain may be called like one of our modules; only a flow file says which domain it is for.
    return module if getattr(module, "DOMAIN", None) == domain else None
