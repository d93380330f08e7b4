"""A domain without data or network, for tests that need only a name and a configuration."""

from __future__ import annotations

from typing import Any

import pytest

from shared import contract


class _Point:
    """An entry point that loads what it was given."""

    value = "tests:toy"

    def __init__(self, domain: contract.Domain) -> None:
        self._domain = domain

    def load(self) -> contract.Domain:
        return self._domain


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A registered domain; its abstract methods are left out, and it must not be asked for them."""
    body = type(
        "Toy",
        (contract.Domain,),
        {"name": "toy", "title": "A toy", "Config": contract.DomainConfig, "__module__": "shared.contract"},
    )
    body.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    domain = body()
    monkeypatch.setattr(contract, "_registered", lambda: {"toy": _Point(domain)})
    return domain
