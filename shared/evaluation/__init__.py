"""Leak-free splits, metrics with intervals, guards and the gate."""
