"""honest: an operation of torch"""

import torch


def run(table, index):
    return torch.nn.functional.embedding(index, table)
