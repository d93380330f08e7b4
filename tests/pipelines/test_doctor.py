"""The doctor: finds what is wrong, names the remedy, exits honestly."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines import cli, doctor
from pipelines.installation import Check
from shared import accelerator, contract, worker
from shared.accelerator import Probe
from shared.errors import DeviceError, WorkerError
from shared.worker import Outcome, Verdict


def seen(**changes: Any) -> Probe:
    answer: dict[str, Any] = {
        "tensorflow": "2.21.0",
        "keras": "3.15.1",
        "devices": ("CPU /physical_device:CPU:0",),
        "device": "cpu",
        "placement": ("/device:CPU:0",),
        "tpu": "no TPU kernels",
        "problems": (),
    }
    return Probe(**{**answer, **changes})


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the children that ask the devices."""

    def answer(outcome: Outcome) -> None:
        monkeypatch.setattr(worker, "warm_up", lambda: None)
        monkeypatch.setattr(worker, "run", lambda *args, **kwargs: outcome)

    return answer


def states(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.state for check in checks}


def test_a_sound_machine_is_sound(probed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    probed(Outcome(Verdict.OK, seen()))
    code = cli.run(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    names = {check["name"] for check in told["checks"]}
    assert {"python", "packages", "versions", "domains", "cpu", "memory", "gpu", "device", "tpu"} <= names
    assert {"precision", "prefect", "tracking", "runs folder"} <= names
    broken = [check for check in told["checks"] if check["state"] == "broken"]
    assert (code == 0) is told["ok"] is (broken == [])
    assert [check for check in broken if check["name"] != "domains"] == []


@pytest.mark.parametrize("verdict", [Verdict.TIMED_OUT, Verdict.KILLED, Verdict.BUG])
def test_a_tensorflow_that_cannot_be_asked_is_broken(probed: Any, verdict: Verdict) -> None:
    probed(Outcome(verdict, error=WorkerError("it hung"), seconds=1.0))
    (check,) = doctor.devices()
    assert check.state == "broken"
    assert str(verdict) in check.found
    assert check.remedy


def test_a_gpu_that_tensorflow_cannot_use_is_a_note_with_its_remedy(probed: Any) -> None:
    probed(
        Outcome(
            Verdict.OK, seen(problems=(DeviceError("A GPU was asked for.", "Install the GPU libraries."),))
        )
    )
    note = next(check for check in doctor.devices() if check.state == "note")
    assert (note.found, note.remedy) == ("A GPU was asked for.", "Install the GPU libraries.")


def test_a_device_that_cannot_be_had_is_broken(probed: Any) -> None:
    probed(
        Outcome(Verdict.OK, seen(device=None, placement=(), problems=(DeviceError("TF_CONFIG is wrong."),)))
    )
    assert states(doctor.devices())["device"] == "broken"


def test_a_tpu_that_hangs_costs_a_time_limit_and_no_more(
    probed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed(Outcome(Verdict.TIMED_OUT))
    (check,) = doctor.tpu()
    assert check.state == "ok", "nobody said that there is one"
    monkeypatch.setattr(accelerator, "tpu_announced", lambda: True)
    (check,) = doctor.tpu()
    assert check.state == "note"
    assert "no answer within" in check.found
    assert "tensorflow-tpu" in check.remedy


def test_our_packages_are_ours() -> None:
    assert [check.state for check in doctor.ownership()] == ["ok"]


def test_packages_of_nobody_are_found_out() -> None:
    (check,) = doctor.ownership("no-such-distribution")
    assert check.state == "broken"
    broken = doctor.ownership(packages=["json"])
    assert [check.state for check in broken] == ["broken"]
    assert "environment of its own" in broken[0].remedy


def installed(folder: Path, distribution: str, package: str, text: str) -> None:
    """Installs a one-file package as a wheel would, over whatever lies there."""
    import base64
    import hashlib

    place = folder / package
    place.mkdir(parents=True, exist_ok=True)
    (place / "__init__.py").write_text(text)
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{package}/__init__.py,sha256={digest},{len(text)}\n{info.name}/RECORD,,\n")


def test_another_wheel_with_a_folder_of_the_same_name_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "casebook_common_word", raising=False)
    installed(tmp_path, "first-one", "casebook_common_word", "x = 1\n")
    importlib.invalidate_caches()
    (check,) = doctor.ownership("first-one", ["casebook_common_word"])
    assert check.state == "ok"
    installed(tmp_path, "second-one", "casebook_common_word", "x = 2\n")
    importlib.invalidate_caches()
    (check,) = doctor.ownership("first-one", ["casebook_common_word"])
    assert check.state == "broken"
    assert "which second-one installed" in check.found


def test_a_domain_that_cannot_be_loaded_is_broken_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bad:
        value = "bad:domain"

        def load(self) -> None:
            raise ImportError("no module named bad")

    monkeypatch.setattr(contract, "_registered", lambda: {"bad": Bad()})
    (check,) = doctor.domains()
    assert check.state == "broken"
    assert "bad" in check.found
    assert "no module named bad" in check.found


def test_an_address_that_does_not_answer_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert states(doctor.services())["tracking"] == "broken"


def test_one_broken_check_does_not_hide_the_others(probed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    probed(Outcome(Verdict.OK, seen()))

    def machine() -> list[Check]:
        raise OSError("no /proc here")

    monkeypatch.setattr(doctor, "machine", machine)
    checks = doctor.examine()
    assert "no /proc here" in next(check.found for check in checks if check.name == "machine")
    assert "device" in states(checks)


@pytest.mark.slow
def test_the_doctor_really_asks_the_device() -> None:
    checks = [*doctor.devices(), *doctor.tpu()]
    assert "a test product ran on" in next(check.found for check in checks if check.name == "device")
    assert states(checks)["tpu"] in ("ok", "note")
