"""A checkpoint's format: tensors as safetensors with a JSON index of pieces, all else as tagged JSON; no pickle.

    weights-<r>.safetensors   the module's parameters and buffers that rank r holds, under their own names
    state-<r>.safetensors     what else rank r holds: optimizer, callbacks, generators
    index.json                every tensor's global shape and dtype, and the pieces that make it up
    state.json                the rest of Lightning's checkpoint, with references to tensors
    rank-<r>.json             rank r's own: random number generators, running means, place in a loader of the user's
    history.json              the logged values up to here, step by step, as plain JSON for people and plots
    train.json                the settings, code and dataset that the module was trained with

Any number of ranks writes a checkpoint, and any other number reads it, with or without a process group.
"""

from training.checkpoint.files import Index, UnsupportedState, load_module_weights, read_index, read_tensors

__all__ = ["Index", "UnsupportedState", "load_module_weights", "read_index", "read_tensors"]
