"""Configuration shared by all domains: frozen pydantic sections, TOML in and out.

A domain subclasses :class:`DomainConfig`, overrides defaults and adds sections of its
own. Layers, weakest first: the domain's defaults, a TOML file, dotted flags.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from shared.errors import InputError, did_you_mean


class Section(BaseModel):
    """A frozen group of settings that refuses keys it doesn't know and numbers that are none.

    A setting called by a word of Python's (``from``) has it as its alias, in and out.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, serialize_by_alias=True
    )


class AcceleratorSection(Section):
    device: Literal["auto", "cpu", "gpu", "gpus", "tpu", "workers"] = Field(
        "auto",
        description="Where to run: auto takes the best device that answers, and workers where TF_CONFIG is set.",
    )
    workers: int = Field(
        1, ge=1, le=64, description="Worker processes on this machine that train one model together."
    )
    worker_seconds: float = Field(
        600.0,
        gt=0,
        description="How long workers wait for one that is silent; longer than its longest compilation.",
    )
    tpu_address: str = Field(
        "local",
        description="Address of the TPU, as TPUClusterResolver takes it; local: TPU_NAME's, else this machine's.",
    )
    logical_cpus: int = Field(
        1, ge=1, le=64, description="Split the CPU into this many logical devices and mirror over them."
    )
    release_command: str = Field(
        "", description="Shell command run when a run ends, however it ends (stop the cloud machine)."
    )
    deterministic: bool = Field(
        False, description="Ask TensorFlow for deterministic ops on a GPU (slower; a CPU is so anyway)."
    )


class PlanSection(Section):
    batch_size: Annotated[int, Field(ge=1, le=1 << 24)] | Literal["auto", "max-throughput"] = Field(
        "auto", description="A number, or found by trying: auto takes the smallest within 5% of the fastest."
    )
    max_batch_size: int = Field(256, ge=1, description="Largest batch size that the search tries.")
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = Field(
        "auto", description="Precision policy; auto measures those that the device can use."
    )
    xla: Literal["auto", "on", "off"] = Field("auto", description="Compile steps with XLA.")
    seconds: float = Field(60.0, gt=0, description="Budget of the search in seconds.")
    trial_seconds: float = Field(45.0, gt=0, description="Limit of a single trial in seconds.")
    memory_gb: float | None = Field(
        None,
        gt=0,
        description="Memory in GiB that a trial, or training, may take on a CPU; default: a trial what is free.",
    )
    learning_rate_rule: Literal["auto", "square-root", "linear", "none"] = Field(
        "auto",
        description="How the learning rate follows the batch size; auto: square root, as for Adam.",
    )
    replan: bool = Field(False, description="Search again even where a plan for this device is kept.")


class TrainSection(Section):
    epochs: int | None = Field(None, ge=1, description="Epochs of every phase; default: as the phase says.")
    learning_rate: float | None = Field(
        None, gt=0, description="Learning rate at the reference batch of 32; default: as the phase says."
    )
    seed: int = Field(0, ge=0, lt=1 << 31, description="Seed of weights, order and augmentation.")
    members: int = Field(1, ge=1, le=32, description="Models in the ensemble; seeds count up from `seed`.")
    patience: int = Field(5, ge=0, description="Epochs without a better monitor before stopping; 0: never.")
    warmup_share: float = Field(0.05, ge=0, lt=1, description="Share of all steps in which the rate rises.")
    schedule: Literal["cosine", "constant"] = Field("cosine", description="Learning rate after the warm-up.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay (AdamW); 0: Adam.")
    clip_norm: float = Field(1.0, ge=0, description="Global norm that gradients are clipped to; 0: none.")
    from_: Literal["scratch", "champion"] = Field(
        "scratch",
        alias="from",
        description="Start from new weights, or retrain the champion's on the data of today.",
    )
    check_precision: bool = Field(
        True, description="In 16 bits: compare the first steps of a phase with the same in float32."
    )
    hours: float = Field(
        24.0, gt=0, description="Deadline for one model of one fold; it is stopped after that."
    )


class GateSection(Section):
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Confidence of every interval.")
    resamples: int = Field(1000, ge=100, description="Bootstrap resamples behind every interval.")
    margin: float = Field(
        0.01, ge=0, description="How much worse than the champion is still 'not worse', in the score's unit."
    )
    min_examples: int = Field(30, ge=1, description="Fewest fair examples on which models are compared.")
    guards: Literal["standard", "full"] = Field(
        "standard", description="full also trains on shuffled labels, which must teach nothing."
    )


class ExportSection(Section):
    formats: tuple[Literal["litert-float16", "litert-dynamic", "litert-int8"], ...] = Field(
        ("litert-float16", "litert-dynamic", "litert-int8"),
        description="Small forms of the model to try beside SavedModel and .keras; none: no others.",
    )
    margin: float = Field(
        0.01,
        ge=0,
        description="How much worse than the trained model a small form may score, in the score's unit.",
    )
    prune: float = Field(
        0.0, ge=0, le=0.95, description="Share of the weights to prune, with fine-tuning; 0: none."
    )
    prune_epochs: int = Field(2, ge=1, description="Epochs of fine-tuning while weights are pruned.")

    @field_validator("formats", mode="before")
    @classmethod
    def _or_none(cls, given: Any) -> Any:
        """``none`` is said more easily than an empty list."""
        return () if given in ("none", ["none"], "") else given


class RunSection(Section):
    price_per_hour: float | None = Field(
        None, ge=0, description="Price of an hour of this machine; default: CASEBOOK_PRICE_PER_HOUR."
    )
    tensorboard: bool = Field(False, description="Write TensorBoard files beside the history.")
    log_steps: int = Field(
        100, ge=0, description="Log the running loss every so many steps, beside every epoch; 0: never."
    )
    sample_seconds: float = Field(
        2.0, ge=0, description="How often use and memory of host and device are sampled; 0: never."
    )
    profile: bool = Field(False, description="Write a TensorFlow profile of a few steps of each phase.")
    keep_checkpoints: bool = Field(False, description="Keep checkpoints after a run is done.")


class DomainConfig(Section):
    """What every domain's configuration has. Subclass it and override ``source``."""

    source: str = Field("synthetic", description="Folder, file or the name of an embedded source.")
    accelerator: AcceleratorSection = AcceleratorSection()
    plan: PlanSection = PlanSection()
    train: TrainSection = TrainSection()
    gate: GateSection = GateSection()
    export: ExportSection = ExportSection()
    run: RunSection = RunSection()


ConfigT = TypeVar("ConfigT", bound=DomainConfig)


def build(
    kind: type[ConfigT],
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Resolves ``flags`` over ``file`` over ``base`` over the defaults of ``kind``.

    Args:
        kind: The domain's configuration class.
        file: A TOML file with the differences only.
        flags: Dotted keys to values, e.g. ``{"train.epochs": "5"}``; text is converted.
        base: A nested mapping below the file, e.g. a schedule's settings.

    Raises:
        InputError: Unknown key, value of the wrong kind, or unreadable TOML. Names the
            key, the received value and what was expected.
    """
    layers = merge(base or {}, differences(file, flags))
    _refuse_unknown(kind, layers, "")
    try:
        # Over the whole tree of defaults: a domain's `train: TrainSection = TrainSection(epochs=7)`
        # must keep its 7 where only another setting of that section is given.
        return kind.model_validate(merge(kind().model_dump(), layers))
    except ValidationError as error:
        raise _readable(error) from None


def differences(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """``flags`` over ``file`` as nested settings, unchecked; arguments as in :func:`build`.

    >>> differences(flags={"train.epochs": "5", "source": "prices.csv"})
    {'train': {'epochs': '5'}, 'source': 'prices.csv'}
    """
    layers = {} if file is None else read_toml(file)
    for key, value in (flags or {}).items():
        layers = merge(layers, _nested(key, value))
    return layers


def read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"Cannot read the configuration {file}: {error.strerror}.", "Give the path of a TOML file."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{file} is not valid TOML: {error}.",
            "`casebook config DOMAIN` prints a valid one.",
        ) from error


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` over ``below``, table by table.

    >>> merge({"train": {"epochs": 3, "seed": 1}}, {"train": {"epochs": 5}})
    {'train': {'epochs': 5, 'seed': 1}}
    """
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def knobs(kind: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every leaf of a configuration class as (dotted key, pydantic field), in order."""
    for name, info in kind.model_fields.items():
        section = _section(info)
        if section is None:
            yield prefix + (info.alias or name), info
        else:
            yield from knobs(section, f"{prefix}{name}.")


def to_toml(config: DomainConfig, *, commented: bool = False) -> str:
    """The configuration as TOML; ``commented`` puts each knob's description above it.

    None has no form in TOML: such keys are written as comments.
    """
    lines: list[str] = []
    _write_table(config, "", lines, commented)
    return "\n".join(lines).strip() + "\n"


def _write_table(section: BaseModel, path: str, lines: list[str], commented: bool) -> None:
    tables: list[tuple[str, BaseModel]] = []
    if path:
        lines += ["", f"[{path}]"]
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            tables.append((f"{path}.{name}" if path else name, value))
            continue
        if commented and info.description:
            lines.append(f"# {info.description}{_choices(info)}")
        shown = info.alias or name
        lines.append(f"# {shown} =" if value is None else f"{shown} = {_literal(value)}")
    for below, value in tables:
        _write_table(value, below, lines, commented)


def _literal(value: Any) -> str:
    import tomlkit

    return tomlkit.item(list(value) if isinstance(value, tuple) else value).as_string()


def _choices(info: FieldInfo) -> str:
    options = [option for option in _literals(info.annotation) if option]
    return f" One of: {', '.join(options)}." if options else ""


def _literals(annotation: Any) -> list[Any]:
    found: list[Any] = []
    for argument in get_args(annotation):
        if isinstance(argument, str):
            found.append(argument)
        else:
            found += _literals(argument)
    return found


def _section(info: FieldInfo) -> type[BaseModel] | None:
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.replace("-", "_").split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def _refuse_unknown(kind: type[BaseModel], given: Mapping[str, Any], prefix: str) -> None:
    fields = {info.alias or name: info for name, info in kind.model_fields.items()}
    for name, value in given.items():
        info = fields.get(name)
        if info is None:
            known = [key for key, _ in knobs(kind, prefix)]
            raise InputError(f"Unknown setting {prefix + name!r}.", did_you_mean(prefix + name, known))
        section = _section(info)
        if section is None:
            continue
        if not isinstance(value, Mapping):
            raise InputError(
                f"{prefix + name} is a group of settings, received {value!r}.",
                f"Set one of {', '.join(key for key, _ in knobs(section, f'{prefix}{name}.'))}.",
            )
        _refuse_unknown(section, value, f"{prefix}{name}.")


def _readable(error: ValidationError) -> InputError:
    found: dict[tuple[str, str], list[str]] = {}
    for item in error.errors():
        # A knob of several kinds ("a number or auto") fails once for each, with the kind after its key.
        parts = [str(part) for part in item["loc"] if str(part).isalnum() or str(part).isidentifier()]
        where = ".".join(part for part in parts if part not in ("int", "float", "str", "bool"))
        found.setdefault((where, repr(item["input"])), []).append(item["msg"].lower())
    lines = [f"{where}: {' or '.join(why)}, received {given}" for (where, given), why in found.items()]
    return InputError(
        f"The configuration has values that cannot be used: {'; '.join(lines)}.",
        "`casebook config DOMAIN` lists every setting with what it takes.",
    )
