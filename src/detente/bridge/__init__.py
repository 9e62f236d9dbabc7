"""The bridge: an unmodified ``torch.nn.Module``, its loss and its optimizer as one XLA program."""
