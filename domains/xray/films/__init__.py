"""Prepared films as a TensorFlow Datasets builder; a package of its own, as TFDS wants its builders.

Nothing is imported here: importing TFDS imports TensorFlow. The builder is in
:mod:`domains.xray.films.builder`.
"""
