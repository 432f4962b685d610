"""Brackets of many settings at a time: which settings have batched kernels, and how these are asked."""
