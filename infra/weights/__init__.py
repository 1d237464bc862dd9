"""Weights as NumPy arrays read from safetensors, without torch: from outside, compared, and checked."""
