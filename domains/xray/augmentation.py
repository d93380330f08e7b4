"""Random changes that a second exposure of the same chest could show, and no others.

A small turn, shift and zoom, and another exposure. Never a mirror image: left and right are
anatomy (the heart's side), and chests do not stand on their heads.
"""

from __future__ import annotations

import math
from typing import Any

TURN = math.radians(7.0)
SHIFT = 0.05
ZOOM = 0.06
EXPOSURE = 0.1


def augment(x: Any, seed: Any) -> Any:
    """A film ``[h, w, 1]`` in 0..1, changed at random as a pure function of ``seed``, int32 ``[2]``."""
    import tensorflow as tf

    draws = tf.random.stateless_uniform([8], seed, -1.0, 1.0)
    height, width = x.shape[0], x.shape[1]
    # Half of the films stay where they are: turning interpolates, which smooths away the grain that
    # every film to be judged later has.
    move = tf.cast(draws[7] > 0, tf.float32)
    angle, zoom = draws[0] * TURN * move, 1.0 + draws[1] * ZOOM * move
    cosine, sine = tf.cos(angle) * zoom, tf.sin(angle) * zoom
    middle_x, middle_y = (width - 1) / 2.0, (height - 1) / 2.0
    # The output pixel (x, y) takes its value from a0 x + a1 y + a2, b0 x + b1 y + b2: a turn and zoom
    # about the middle, then a shift.
    a2 = middle_x - cosine * middle_x + sine * middle_y + draws[2] * SHIFT * width * move
    b2 = middle_y - sine * middle_x - cosine * middle_y + draws[3] * SHIFT * height * move
    zero = tf.zeros_like(angle)
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=x[tf.newaxis],
        transforms=tf.stack([cosine, -sine, a2, sine, cosine, b2, zero, zero])[tf.newaxis],
        output_shape=[height, width],
        fill_value=0.0,  # air
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )[0]
    contrast, brightness, gamma = (
        1.0 + draws[4] * EXPOSURE,
        draws[5] * EXPOSURE / 3,
        tf.exp(draws[6] * EXPOSURE),
    )
    exposed = tf.pow(tf.clip_by_value(moved, 1e-6, 1.0), gamma) * contrast + brightness * tf.cast(
        moved > 0, x.dtype
    )
    return tf.ensure_shape(tf.clip_by_value(exposed, 0.0, 1.0), x.shape)
