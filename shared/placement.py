"""Proof of placement: a product is computed on every device, and asked where it ran.

Needed because the obvious signs lie: ``OneDeviceStrategy("GPU:0")`` without a GPU computes on the CPU,
``MirroredStrategy`` constructs over GPUs that are not there, ``get_memory_info("CPU:0")`` returns zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import DeviceError

if TYPE_CHECKING:
    import tensorflow as tf

GPU_REMEDY = (
    'Install the GPU libraries, in the checkout `pip install -c constraints.txt -e ".[gpu]"`, '
    "and NVIDIA's driver."
)


def proof(strategy: tf.distribute.Strategy, device: str) -> tuple[str, ...]:
    """Where a test product ran, one TensorFlow device name a replica.

    Raises:
        DeviceError: Elsewhere than it should have.
    """
    return tuple(prove(name) for name in replica_devices(strategy, device))


def replica_devices(strategy: tf.distribute.Strategy, device: str) -> list[str]:
    if device in ("cpu", "gpu") and strategy.num_replicas_in_sync == 1:
        return [f"/device:{device.upper()}:0"]
    return list(strategy.extended.worker_devices)


def prove(name: str) -> str:
    """Computes a product on ``name`` with soft placement off, and returns where it ran.

    Raises:
        DeviceError: It ran elsewhere, gave a wrong number, or took no memory of the GPU.
    """
    import tensorflow as tf

    soft = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(False)
    try:
        with tf.device(name):
            a = tf.ones([256, 256])
            product = tf.matmul(a, a)
        ran = product.device
        total = float(tf.reduce_sum(product).numpy())
    except (tf.errors.InvalidArgumentError, tf.errors.InternalError, RuntimeError) as error:
        raise DeviceError(f"A test product could not run on {name}: {error}.", GPU_REMEDY) from error
    finally:
        tf.config.set_soft_device_placement(soft)
    asked = tf.DeviceSpec.from_string(name)
    got = tf.DeviceSpec.from_string(ran)
    if (asked.device_type, asked.device_index) != (got.device_type, got.device_index):
        raise DeviceError(f"A test product for {name} ran on {ran}.", GPU_REMEDY)
    if total != 256.0**3:
        raise DeviceError(f"A test product on {name} gave {total}, not {256.0**3}.", "Check the device.")
    if got.device_type == "GPU":
        peak = tf.config.experimental.get_memory_info(f"GPU:{got.device_index}")["peak"]
        if peak < 256 * 256 * 4:
            raise DeviceError(f"A test product on {name} took no memory of the GPU.", GPU_REMEDY)
    return str(ran)
