import torch

torch.set_num_threads(1)  # models of a few hundred weights: more threads only get in each other's way
