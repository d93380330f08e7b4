"""Backbones: films in, feature maps out. Every one takes a film in 0..1 with a single channel.

The scaling that the pretrained weights expect is part of the model, so that training, export and
prediction cannot disagree about it, and :func:`assert_one_scaling` proves that it happens once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domains.xray import weights
from shared.errors import CasebookError, InputError, did_you_mean

if TYPE_CHECKING:
    import keras

# EfficientNet-B0's stages without squeeze-excite: (repeats, kernel, stride, expansion, filters).
# Source: Tan and Le 2019, table 1; "Lite": Liu 2020 (ReLU6, no squeeze-excite, fixed stem and head).
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
OFFERED = ("lite0", "tiny")


def build(name: str, source: str, size: int) -> keras.Model:
    """The backbone ``name`` as a model from films ``[B, size, size, 1]`` in 0..1 to maps ``[B, h, w, c]``.

    Args:
        name: ``"lite0"``, ``"tiny"`` or a name in ``keras.applications`` that starts with EfficientNet.
        source: ``"imagenet"``, ``"none"`` or the path of a file of weights.

    Raises:
        InputError: Unknown backbone, or weights that cannot be had; says what can.
    """
    if name == "lite0":
        model = _lite0(source, size)
    elif name == "tiny":
        model = _tiny(source, size)
    else:
        model = _of_keras(name, source, size)
    if source == "none" or (name == "tiny" and source == "imagenet"):
        draw_weights(model)
    assert_one_scaling(model, size)
    return model


def draw_weights(model: keras.Model) -> None:
    """Gives every kernel He-normal weights that depend on its place alone.

    Features are computed in one process and the network that goes on from them is built in
    another: without pretrained weights both must draw the same ones.
    """
    kernels = [variable for variable in model.weights if variable.name == "kernel"]
    for number, kernel in enumerate(kernels):
        shape = tuple(kernel.shape)
        # A depthwise kernel [h, w, channel, 1] sums over its window only.
        fan_in = np.prod(shape[:2]) if len(shape) == 4 and shape[-1] == 1 else np.prod(shape[:-1])
        drawn = np.random.default_rng([0, number]).standard_normal(shape, "float32")
        kernel.assign(drawn * np.float32(np.sqrt(2.0 / fan_in)))


def blocks(model: keras.Model) -> list[str]:
    """Names of the backbone's blocks in order, from the names of its layers.

    Ends in ``"top"``, the last convolution, where there is one.
    """
    names = (re.match(r"(block\d+[a-z]?|top)_", layer.name) for layer in _inner(model).layers)
    return list(dict.fromkeys(match.group(1) for match in names if match))


def freeze(model: keras.Model, unfreeze: int) -> None:
    """Leaves only the last ``unfreeze`` blocks trainable, and no BatchNormalization anywhere.

    A BatchNormalization that is not trainable runs in inference mode (Keras 3): few films a batch
    would spoil its statistics, and training and evaluation would disagree.
    """
    import keras

    open_blocks = set(blocks(model)[-unfreeze:]) if unfreeze else set()
    for layer in _inner(model).layers:
        if isinstance(layer, keras.Model):
            continue
        in_open = any(layer.name.startswith(f"{block}_") for block in open_blocks)
        layer.trainable = in_open and not isinstance(layer, keras.layers.BatchNormalization)


@contextmanager
def float32() -> Iterator[None]:
    """Within the block, layers are built in float32 whatever the plan's policy is."""
    import keras

    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def assert_one_scaling(model: keras.Model, size: int) -> None:
    """Checks what reaches the first convolution for the darkest and the brightest film.

    The weights were made with inputs of a few units around 0. Pixels scaled twice arrive as
    (nearly) one constant, pixels never scaled as hundreds.

    Raises:
        CasebookError: Out of range; gives the range found.
    """
    import keras

    inner = _inner(model)
    first = next(layer for layer in inner.layers if isinstance(layer, keras.layers.Conv2D))
    film = np.zeros((2, size, size, 1), "float32")
    film[1] = 1.0
    x = film
    if inner is not model:
        x = keras.Model(model.input, model.get_layer("film_channels").output)(x)
    x = keras.Model(inner.input, first.input)(x, training=False)
    seen = np.asarray(x, "float32")[:, size // 2, size // 2, :]
    spread = float(np.min(seen[1] - seen[0]))
    if not (0.5 <= spread <= 10 and np.abs(seen).max() <= 10):
        raise CasebookError(
            f"A film from 0 to 1 reaches the first convolution of {model.name!r} as {seen.min():.4g} to "
            f"{seen.max():.4g}; its weights expect a range of 1 to 10 units about 0.",
            "Scale pixels once: give the backbone with its own rescaling, or without and none before it.",
        )


def _inner(model: keras.Model) -> keras.Model:
    """The model of keras.applications inside, where there is one."""
    import keras

    return next((layer for layer in model.layers if isinstance(layer, keras.Model)), model)


def _film(size: int, low: float, high: float) -> tuple[Any, Any]:
    """Input in 0..1 and its three equal channels in ``low``..``high``."""
    import keras

    film = keras.Input((size, size, 1), name="film")
    # float32 whatever the policy: bfloat16 would leave 8 bits of a 16-bit film before the first layer.
    scaled = keras.layers.Rescaling(high - low, low, name="film_range", dtype="float32")(film)
    three = keras.layers.Concatenate(name="film_channels", dtype="float32")([scaled, scaled, scaled])
    return film, three


def _lite0(source: str, size: int) -> keras.Model:
    import keras
    from keras import layers

    film, x = _film(size, -127 / 128, (255 - 127) / 128)
    torch_names = {"stem_conv": "_conv_stem", "stem_bn": "_bn0", "top_conv": "_conv_head", "top_bn": "_bn1"}

    def normal(x: Any, name: str, active: bool = True) -> Any:
        x = layers.BatchNormalization(epsilon=1e-3, name=name)(x)
        return layers.ReLU(6.0, name=f"{name}_relu6")(x) if active else x

    def convolution(x: Any, filters: int, name: str, kernel: int = 1, stride: int = 1) -> Any:
        return layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False, name=name)(x)

    x = normal(convolution(x, 32, "stem_conv", 3, 2), "stem_bn")
    number, channels = 0, 32
    for stage, (repeats, kernel, stride, expansion, filters) in enumerate(_STAGES, start=1):
        for repeat in range(repeats):
            block, torch_block = f"block{stage}{chr(97 + repeat)}", f"_blocks.{number}"
            entrance, step = x, stride if repeat == 0 else 1
            if expansion != 1:
                x = normal(convolution(x, channels * expansion, f"{block}_expand"), f"{block}_expand_bn")
                torch_names[f"{block}_expand"] = f"{torch_block}._expand_conv"
                torch_names[f"{block}_expand_bn"] = f"{torch_block}._bn0"
            x = layers.DepthwiseConv2D(kernel, step, padding="same", use_bias=False, name=f"{block}_depth")(x)
            x = normal(x, f"{block}_depth_bn")
            x = normal(convolution(x, filters, f"{block}_project"), f"{block}_project_bn", active=False)
            torch_names[f"{block}_depth"] = f"{torch_block}._depthwise_conv"
            torch_names[f"{block}_depth_bn"] = f"{torch_block}._bn1"
            torch_names[f"{block}_project"] = f"{torch_block}._project_conv"
            torch_names[f"{block}_project_bn"] = f"{torch_block}._bn2"
            if step == 1 and channels == filters:
                x = layers.Add(name=f"{block}_add")([x, entrance])
            number, channels = number + 1, filters
    x = normal(convolution(x, 1280, "top_conv"), "top_bn")
    model = keras.Model(film, x, name="lite0")
    if source == "none":
        return model
    file = weights.lite0_checkpoint() if source == "imagenet" else Path(source)
    if file.name.endswith((".weights.h5", ".keras", ".h5")):
        return _load_file(model, model, file)
    tensors = weights.read_legacy_torch(file)
    weights.assign({layer.name: layer for layer in model.layers}, tensors, torch_names.__getitem__)
    return model


def _tiny(source: str, size: int) -> keras.Model:
    """Three strided convolutions: for tests and first looks, without pretrained weights."""
    import keras
    from keras import layers

    film, x = _film(size, -1.0, 1.0)
    for number, filters in enumerate((12, 24, 48), start=1):
        x = layers.Conv2D(filters, 3, 2, padding="same", activation="relu", name=f"block{number}_conv")(x)
    x = layers.Conv2D(96, 1, activation="relu", name="top_conv")(x)
    model = keras.Model(film, x, name="tiny")
    return model if source in ("none", "imagenet") else _load_file(model, model, Path(source))


def _of_keras(name: str, source: str, size: int) -> keras.Model:
    import keras

    known = [n for n in dir(keras.applications) if n.startswith("EfficientNet")]
    if name not in known:
        raise InputError(f"There is no backbone {name!r}.", did_you_mean(name, [*OFFERED, *known]))
    # These carry their own scaling from 0..255 (include_preprocessing of V2 is on by default).
    film, x = _film(size, 0.0, 255.0)
    maker = getattr(keras.applications, name)
    weights_argument = "imagenet" if source == "imagenet" else None
    try:
        inner = maker(include_top=False, weights=weights_argument, input_shape=(size, size, 3))
    except Exception as error:  # keras raises a bare Exception where the internet cannot be reached
        raise InputError(
            f"The ImageNet weights of {name} could not be fetched: {str(error).splitlines()[0][:120]}",
            "They come from the internet. Set model.backbone to lite0 (its weights are installed), "
            "model.weights to a file you have, or model.weights to none.",
        ) from error
    inner.name = "backbone_net"
    # training=False: dropout of blocks and BatchNormalization stay in inference mode in training too.
    model = keras.Model(film, inner(x, training=False), name=name.lower())
    return model if source in ("imagenet", "none") else _load_file(model, inner, Path(source))


def _load_file(model: keras.Model, target: keras.Model, file: Path) -> keras.Model:
    if not file.is_file():
        raise InputError(
            f"There is no file of weights {file}.",
            "Set model.weights to imagenet, none, or an existing file.",
        )
    try:
        target.load_weights(str(file))
    except Exception as error:  # the readers of HDF5 raise many kinds
        raise InputError(
            f"{file.name} does not hold weights of {model.name}: {str(error).splitlines()[0][:160]}",
            "Give weights saved from this backbone (include_top=False), or set model.weights to none.",
        ) from error
    return model
