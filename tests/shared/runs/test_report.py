"""The report page: complete, self-contained, escaped, and made whatever is missing."""

import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from shared import files
from shared.config import DomainConfig, GateSection, to_toml
from shared.contract import DataCard, Evaluation, Figure, Metric, Predictions, Quarantined, Score, Table
from shared.evaluation import gate, metrics
from shared.evaluation.guards import GuardResult
from shared.plan import ExecutionPlan, Trial
from shared.runs import figures, report, report_parts

EVIL = "<script>alert('film')</script>"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c63600000000200014821a4bd0000000049454e44ae426082"
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run's folder, as the steps leave it, with a script in every name."""
    folder = tmp_path / "20261130-120000-ab12"
    generator = np.random.default_rng(0)
    truth = (np.arange(300) % 2).astype(np.float32)
    keys = np.array([f"{number:04d}" for number in range(300)])

    def said(skill):
        return Predictions(keys, (truth * skill + generator.random(300)).astype(np.float32) / 2, truth)

    score = Score("AUROC", metrics.auroc, higher_is_better=True, chance=0.5)
    compared = metrics.bootstrap(
        score,
        {"model": said(0.5), f"ridge {EVIL}": said(0.1), "flat": replace(said(0), values=truth * 0)},
        resamples=100,
    )
    guards = [
        GuardResult("groups are not divided", True, EVIL),
        GuardResult("no look ahead", None, "no time"),
    ]
    decided = gate.decide(
        compared, champion=None, guards=guards, export={"max_difference": 0.0}, section=GateSection()
    )
    evaluation = Evaluation(
        metrics=[Metric("MCC", 0.31, 0.2, 0.4, note=EVIL), Metric("Brier", float("nan"))],
        tables=[Table(f"By {EVIL}", ["ticker", "n"], [[EVIL, 12345]])],
        figures=[Figure(Path("figures/curve.png"), f"A curve of {EVIL}")],
        decision={"temperature": 1.25, "point": {"threshold": 0.4}},
        flags=["class 1 is never predicted"],
        limits=["Not for diagnosis."],
    )
    files.write_json(folder / "manifest.json", {
        "run": folder.name, "domain": "xray", "title": "Chest films", "state": "done",
        "started": "2026-11-30T12:00:00+00:00",
        "synthetic": False, "seeds": [0, 1], "packages": {"numpy": "2.4"}, "model_label": "xray v1 (champion)",
        "steps": {"ingest": {"state": "done", "seconds": 1.5}, "train": {"state": "done", "seconds": 60.0}},
        "cost": {"device_seconds": 61.5, "seconds": 70.0, "money": 0.01, "price_per_hour": 0.5}, "source": EVIL,
        "code_version": "c0de", "inputs": {"data": "f1de"},
    })  # fmt: skip
    quarantine = [Quarantined(f"{EVIL}/{number}.dcm", "truncated") for number in range(30)]
    files.write_json(
        folder / "card.json", asdict(DataCard(f"Films of {EVIL}", False, 1234, {"patients": 200}, quarantine))
    )
    sizes = {"train": 200, "validation": 40, "test": 60}
    extent = {"train": ["2000", "2010"], "validation": ["2011", "2012"], "test": ["2013", "2015"]}
    fold = {"name": "only", "sizes": sizes, "about": {"salt": EVIL}, "extent": extent, "groups": sizes}
    files.write_json(folder / "folds.json", [fold])
    trials = (
        Trial(32, "float32", False, "fits", 900.0, 0.03, 0.03, 2.0, 2**28),
        Trial(64, "float32", False, "out of memory"),
    )
    plan = ExecutionPlan(
        device_name="a CPU", trials=trials, reasons=("Batch 32: 64 does not fit.",), measured=True
    )
    files.write_json(folder / "plan.json", plan.to_dict())
    rows = [{"fold": "only", "member": m, "phase": "head" if e < 2 else "fine-tune", "epoch": e + 1,
             "loss": 1 / (e + 1), "val_loss": 1.2 / (e + 1), "val_AUROC": 0.5 + e / 20,
             "samples_per_second": 900.0, "input_bound_share": 0.1, "cpu_share": 0.9, "host_memory_gb": 1.5}
            for m in (0, 1) for e in range(4)]  # fmt: skip
    rows.insert(
        0, {"fold": "only", "member": 0, "kind": "step", "phase": "head", "epoch": 1, "step": 100, "loss": 1}
    )
    files.write_text(folder / "history.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n")
    files.write_json(folder / "metrics.json", {
        "score": {"name": "AUROC"}, "comparison": compared.to_dict(), "evaluation": asdict(evaluation),
        "per_fold": [{"fold": name, "examples": 150, "model": 0.7, "flat": 0.5} for name in ("a", "b")],
        "guards": [asdict(guard) for guard in guards],
    })  # fmt: skip
    files.write_json(folder / "gate.json", asdict(decided))
    files.write_text(folder / "config.toml", to_toml(DomainConfig(source=EVIL)))
    (folder / "figures").mkdir()
    (folder / "figures" / "curve.png").write_bytes(PNG)
    return folder


def page_of(folder: Path) -> str:
    return report.write(folder).read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Collects tags, what they refer to, and visible text; complains of tags left open."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.refers, self.text, self.open = [], [], "", []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.refers += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data


def test_everything_is_on_the_page(run):
    text = " ".join(Reader(page_of(run)).text.split())
    for expected in (
        "Promoted", "is better than ridge", "Chest films", "1,234 examples, 30 set aside", "30 × truncated",
        "And 10 more", "AUROC", "0.500", "MCC", "0.310", "0.200 to 0.400", "12,345", "class 1 is never predicted",
        "temperature", "point.threshold", "Not for diagnosis.", "groups are not divided", "Batch 32: 64 does not fit.",
        "out of memory", "256.0 MiB", "900", "± 3%", "61.5 device-seconds", "0.01 at 0.5 an hour",
        "xray v1 (champion)", "c0de",
        "train", "[gate]", "A dotted line ends a phase", "200 / 40 / 60", "Fold by fold",
    ):  # fmt: skip
        assert expected in text, expected
    assert "SYNTHETIC" not in text


def test_nothing_outside_the_page_is_asked_for(run):
    page = page_of(run)
    for target in Reader(page).refers:
        assert target.startswith(("data:image/", "#")), target
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert len(page) < 400_000


@pytest.mark.usefixtures("undrawn")
def test_names_from_strangers_stay_text(run):
    read = Reader(page_of(run))
    assert "script" not in read.tags
    assert "b" in read.tags  # the verdict's own
    # data card, quarantine, fold, baseline, guard, metric, table, caption and configuration
    assert read.text.count(EVIL) > 25


@pytest.mark.usefixtures("undrawn")
def test_synthetic_data_is_said_at_the_top(run):
    card = files.read_json(run / "card.json")
    files.write_json(run / "card.json", {**card, "synthetic": True})
    text = Reader(page_of(run)).text
    assert text.index("SYNTHETIC DATA") < text.index("Promoted")


NAMES = (
    "manifest.json",
    "card.json",
    "folds.json",
    "plan.json",
    "history.jsonl",
    "metrics.json",
    "gate.json",
    "config.toml",
)


@pytest.fixture
def undrawn(monkeypatch):
    """Without curves, which take most of a page's time."""
    monkeypatch.setattr(figures, "learning_curves", lambda history: None)
    monkeypatch.setattr(figures, "use_curves", lambda history: None)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("undrawn")
def test_a_missing_file_is_said_and_the_rest_is_shown(run, name):
    (run / name).unlink()
    text = Reader(page_of(run)).text
    expected = "No verdict yet" if name == "gate.json" else "not come so far|is missing"
    assert re.search(expected, text)
    assert "Limits" in text


DAMAGED = (
    '{"half": ',
    "[]",
    "3",
    '[{"sizes": 3}]',
    '{"comparison": {"rows": [{}]}, "steps": {"a": {}}}',
    '{"checks": [{}], "guards": [{}], "trials": [{}], "evaluation": {"metrics": [{}], "tables": [{}]}}',
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("undrawn")
def test_a_damaged_file_never_stops_the_page(run, name):
    for content in DAMAGED:
        (run / name).write_text(content)
        assert "Limits" in Reader(page_of(run)).text


@pytest.mark.usefixtures("undrawn")
def test_the_advice_is_of_the_model_that_waited_longest(run):
    reports = [
        {"fold": "a", "seed": 0, "input_bound_share": share, "advice": f"{share:.0%} is waiting."}
        for share in (0.2, 0.6, 0.4)
    ]
    files.write_json(run / "steps" / "train.json", {"reports": reports})
    text = Reader(page_of(run)).text
    assert "60% is waiting." in text
    assert "40% is waiting." not in text
    assert "Every model" in text


def test_lines_of_steps_are_no_epochs(run, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "learning_curves", lambda history: drawn.append(history))
    monkeypatch.setattr(figures, "use_curves", lambda history: drawn.append(history))
    page_of(run)
    assert [len(rows) for rows in drawn] == [8, 8]


def test_use_of_the_machine_is_drawn_as_far_as_it_was_sampled(run):
    assert "in the order they were trained" in Reader(page_of(run)).text
    row = {"fold": "a", "member": 0, "phase": "fit", "epoch": 1, "loss": 0.5}
    assert figures.use_curves([row, {**row, "cpu_share": None}]) is None
    drawn = [{**row, "samples_per_second": 9.0}, {**row, "gpu_share": 0.5}, {**row, "host_memory_gb": 2.0}]
    uri, caption = figures.use_curves(drawn)
    assert uri.startswith("data:image/svg+xml;base64,")
    assert caption.endswith("trained.")
    assert figures.use_curves(drawn * 300)[1].endswith("one of 3 is drawn.")


@pytest.mark.usefixtures("undrawn")
def test_profiles_are_named_with_where_the_time_went(run):
    train = run / "steps" / "train.json"
    folder = run / "work" / "fold-0" / "seed-0"
    files.write_json(train, {"members": [[str(folder), str(run.parent / "elsewhere")]], "reports": []})
    for phase in ("head", "all"):
        files.write_text(folder / "profile" / phase / "plugins" / "profile" / "now" / "host.xplane.pb", "")
    ops = [{"name": f"MatMul {EVIL}", "share": 0.613}]
    found = {"where": "host", "ops": ops, "input_seconds": 0.25}
    files.write_json(folder / "profile" / "head" / "summary.json", found)
    text = " ".join(Reader(page_of(run)).text.split())
    assert f"work/fold-0/seed-0/profile/head: MatMul {EVIL} 61% of the time of ops; 0.2 s waiting" in text
    assert "work/fold-0/seed-0/profile/all" in text
    for damaged in ("[]", '{"ops": [{}]}', '{"ops": 3}', "{"):
        (folder / "profile" / "head" / "summary.json").write_text(damaged)
        assert "work/fold-0/seed-0/profile/head" in Reader(page_of(run)).text


def test_a_damaged_history_is_said(run):
    (run / "history.jsonl").write_text("3\n")
    assert "could not be read (AttributeError)" in Reader(page_of(run)).text


def test_an_empty_folder_has_a_page(tmp_path):
    assert "has not come so far" in Reader(page_of(tmp_path)).text


@pytest.mark.usefixtures("undrawn")
def test_a_failed_run_says_why(run):
    manifest = files.read_json(run / "manifest.json")
    steps = {"train": {"state": "failed", "seconds": 3.0, "reason": "Loss is NaN."}}
    files.write_json(run / "manifest.json", {**manifest, "state": "failed", "steps": steps})
    text = Reader(page_of(run)).text
    assert "Failed" in text
    assert "train: Loss is NaN." in text
    assert "Promoted" not in text


@pytest.mark.usefixtures("undrawn")
def test_pictures_of_elsewhere_are_not_taken_in(run):
    (run.parent / "secret.png").write_bytes(PNG)
    for path in ("../secret.png", str(run.parent / "secret.png"), "figures/none.png", "manifest.json"):
        assert report_parts._figure(run, {"path": path, "caption": ""})["uri"] is None
    (run / "figures" / "curve.png").unlink()
    assert "The picture curve.png is missing." in Reader(page_of(run)).text


def test_an_axis_holds_its_values_and_has_round_ticks():
    axis = figures.Axis.over([0.5, 0.612, 0.71, None, float("nan")])
    assert [label for _, label in axis.ticks] == ["0.5", "0.6", "0.7"]
    assert 0 < axis(0.5) < axis(0.71) < 100
    assert figures.Axis.over([]).ticks
    assert figures.Axis.over([3.0, 3.0])(3.0) == 50


def test_the_timeline_reads_dates_and_years_and_gives_lanes_to_what_overlaps():
    def fold(**extent):
        return {"name": "f", "extent": extent}

    drawn = figures.timeline([fold(train=["2000-01-03", "2004-12-31"], test=["2005-01-10", "2006-12-29"])])
    (bars,) = drawn["rows"][0]["lanes"]
    assert bars[0]["left"] == 0
    assert bars[0]["width"] < bars[1]["left"]
    assert "2004" in [label for _, label in drawn["ticks"]]
    drawn = figures.timeline([fold(train=["1860", "2099"], test=["2010", "2099"])])
    assert len(drawn["rows"][0]["lanes"]) == 2
    assert "2000" in [label for _, label in drawn["ticks"]]
    assert figures.timeline([fold(train=["2000-02-30", "2001-01-01"])]) is None  # of another calendar
    assert figures.timeline([{"name": "f", "extent": None}]) is None


def test_learning_curves_of_one_epoch_of_nan_and_of_many_folds():
    one = {"fold": "a", "member": 0, "phase": "fit", "epoch": 1, "loss": 0.5}
    uri, caption = figures.learning_curves([one])
    assert uri.startswith("data:image/svg+xml;base64,")
    assert figures.learning_curves([{**one, "loss": None}]) is None
    _, caption = figures.learning_curves([{**one, "fold": str(number)} for number in range(12)])
    assert "newest 8 of 12 folds" in caption


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (None, None),
        ({"champion": None}, "no champion"),
        ({"champion": "x v1", "members": [{"fold": "a", "from": "champion"}]}, "x v1, 1 of 1 models"),
        (
            {"champion": "x v1", "members": [{"fold": "a", "from": "scratch", "why": "It saw 3."}] * 2},
            "x v1, 0 of 2 models; from new weights a: It saw 3.",
        ),
    ],
)
def test_the_head_tells_what_training_began_with_and_what_memory_made_of_it(
    start: dict | None, told: str | None, tmp_path: Path
) -> None:
    from shared.runs import report_parts

    memory = {"memory": ["batch 16 as a whole"], "micro_batches": 4} if start else {}
    facts = report_parts.head(tmp_path, {"started_from": start, **memory}, {}, {})["facts"]
    if told is None:
        assert not {"Began with", "Memory"} & set(facts)
        return
    assert told in facts["Began with"]
    assert facts["Memory"] == "ran out with batch 16 as a whole: fell back to 4 micro-batches"


def test_micro_batches_stand_in_the_plan_and_only_the_trial_that_ran_is_chosen() -> None:
    from shared.runs import report_parts

    trials = (
        Trial(64, "float32", False, "out of memory"),
        Trial(64, "float32", False, "fits", 900.0, accumulation=4),
    )
    found = ExecutionPlan(batch_size=64, accumulation=4, trials=trials).to_dict()
    shown = report_parts.plan(found)
    assert shown is not None
    chosen = {row["batch_size"]: row["chosen"] for row in shown["trials"]}
    assert chosen == {"64": False, "64 (4 x 16)": True}
    assert shown["facts"]["Batch size"] == "64 (4 x 16)"
