"""Every registered domain of ours passes the suite that authors of other domains run."""

from __future__ import annotations

import pytest

from shared.contract import find
from shared.testing import Conformance

pytestmark = pytest.mark.slow


class TestXray(Conformance):
    domain = find("xray")


class TestStocks(Conformance):
    domain = find("stocks")


class TestClimate(Conformance):
    domain = find("climate")
