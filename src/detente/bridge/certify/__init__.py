"""Certificates: a step beside eager PyTorch, tensor by tensor."""
