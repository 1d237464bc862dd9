"""The order of samples as pure functions of the dataset, the seed and the epoch, and each rank's part of it at each
step. Torch-free; nothing here reads a file or knows the number of ranks, except `rank_plan`.
"""
