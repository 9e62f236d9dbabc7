"""Which layer is the first whose value differs, of one model in two frameworks.

When a proof failed, weights and batch are equal and loss or gradients are not. Operators are no help in finding where:
one framework adds a bias within the product that the other adds two lines later. Parameters are: both sides consume
the same ones, in much the same order. So each side records, in a process of its own, what comes out where a parameter
meets an activation (``in_torch.walk``, ``in_jax.walk``; ``record`` has the noun and the files), and ``compare`` reads
both without a framework and makes a ``difference`` of them, which has the words for a user.
"""
