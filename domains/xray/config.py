"""Settings of the X-ray domain, each with its reason."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shared.config import DomainConfig, PlanSection, Section, TrainSection

Missing = Literal["ignore", "zeros", "ones"]


class FilmSection(Section):
    size: int = Field(128, ge=32, le=1024, description="Side of a prepared film in pixels.")
    fit: Literal["pad", "stretch"] = Field(
        "pad", description="How an oblong film becomes square: pad keeps its proportions."
    )
    window: int = Field(0, ge=0, description="Which of several windows of a DICOM file to use, from 0.")
    prefer_lut: bool = Field(True, description="Where a file has a VOI LUT and a window, take the LUT.")
    low_percentile: float = Field(
        0.1, ge=0, lt=50, description="A film without window or LUT is stretched from this percentile."
    )
    high_percentile: float = Field(99.9, gt=50, le=100, description="... to this one.")
    body_parts: tuple[str, ...] = Field(
        ("CHEST", "THORAX", "LUNG", "LUNGS", "PORT CHEST", "CHEST PORT", "TORSO"),
        description="BodyPartExamined that may be scored; others are set aside. Empty: no check.",
    )
    modalities: tuple[str, ...] = Field(
        ("CR", "DX", "RG", "RF", "DR", "OT"), description="Modality that may be scored; others are set aside."
    )
    largest_aspect: float = Field(
        1.8, ge=1, description="A film more oblong than this is set aside: a leg, not a chest."
    )
    smallest_side: int = Field(48, ge=8, description="A film smaller than this is set aside.")


class LabelSection(Section):
    table: str = Field("labels.csv", description="Name of the label table in the source folder.")
    names: tuple[str, ...] = Field((), description="Label columns to learn; empty: every label column.")
    path_column: str = Field("", description="Column of file paths; empty: path, file or Image Index.")
    patient_column: str = Field("", description="Column of patient keys; empty: patient or Patient ID.")
    patient_pattern: str = Field(
        "",
        description="Regular expression whose first group, found in the relative path, is the patient; "
        "for films without header and table.",
    )
    negative_class: str = Field(
        "", description="Class folder that means no finding; empty: normal and the like."
    )
    blank: Missing = Field("ignore", description="What a blank or NaN label means: unknown, no, or yes.")
    uncertain: Missing = Field("ignore", description="What the label -1 means: unknown, no, or yes.")
    blank_by_label: tuple[str, ...] = Field((), description='Exceptions from `blank`, e.g. "Edema=zeros".')
    uncertain_by_label: tuple[str, ...] = Field(
        (), description='Exceptions from `uncertain`, e.g. "Edema=ones".'
    )


class PrivacySection(Section):
    salt_file: str = Field(
        "",
        description="File with a secret text that pseudonyms are made with. Without it, whoever has a list of "
        "patient ids can recognise them.",
    )
    file_names: Literal["number", "path"] = Field(
        "number",
        description="How outputs name a file: by its number among the sorted paths, or by its path "
        "(only where no path holds a name).",
    )


class SplitSection(Section):
    shares: tuple[float, float, float] = Field(
        (0.6, 0.18, 0.22), description="Shares of patients in train, validation and test."
    )
    salt: str = Field(
        "casebook", description="Changes which patients fall where; a patient's place is permanent."
    )


class ModelSection(Section):
    backbone: str = Field(
        "lite0",
        description="lite0, tiny (a small CNN for tests), or an EfficientNet of keras.applications by name.",
    )
    weights: str = Field("imagenet", description="imagenet, none, or a file of weights for the backbone.")
    dropout: float = Field(0.2, ge=0, lt=1, description="Dropout before the head.")
    copies: int = Field(
        2, ge=0, description="Randomly changed copies of each training film that the head learns from, too."
    )
    head_epochs: int = Field(40, ge=1, description="Epochs of the head on frozen features.")
    head_rate: float = Field(3e-3, gt=0, description="Learning rate of the head.")
    tune_epochs: int = Field(6, ge=1, description="Epochs with the last blocks unfrozen.")
    tune_rate: float = Field(2e-5, gt=0, description="Learning rate with the last blocks unfrozen.")
    unfreeze: int = Field(3, ge=1, description="How many of the last blocks are unfrozen.")
    positive_weight: Literal["balanced", "none"] = Field(
        "balanced",
        description="balanced: a rare finding's positives weigh as much as its negatives (up to 20x).",
    )
    augment: bool = Field(
        True, description="Small turns, shifts, zooms and exposure changes; never a mirror image."
    )


class ReadSection(Section):
    sensitivity: float = Field(
        0.9, gt=0, lt=1, description="Sensitivity that the operating point must reach on validation."
    )
    overlays: int = Field(8, ge=0, description="How many of the most urgent films get a Grad-CAM picture.")


class SyntheticSection(Section):
    films: int = Field(480, ge=8, description="Films drawn for `--source synthetic`.")
    size: int = Field(160, ge=48, le=1024, description="Side of a drawn film in pixels.")
    strength: float = Field(
        1.0, ge=0, le=1, description="Strength of the drawn disease; 0: labels are chance."
    )
    seed: int = Field(7, ge=0, description="Seed of the drawn films.")


class XrayConfig(DomainConfig):
    film: FilmSection = FilmSection()
    labels: LabelSection = LabelSection()
    privacy: PrivacySection = PrivacySection()
    split: SplitSection = SplitSection()
    model: ModelSection = ModelSection()
    read: ReadSection = ReadSection()
    synthetic: SyntheticSection = SyntheticSection()
    # The trials of a film model are slow on a CPU, and films are few: beyond 64 a batch holds too
    # large a part of an epoch to be worth the time of trying.
    plan: PlanSection = PlanSection(max_batch_size=64)
    train: TrainSection = TrainSection(patience=6)
