"""The map between the weights of a user's torch model and of the same model in JAX, found by names.

``tensors`` and ``modules`` are the nouns, ``names`` what a name says, ``matching`` which module is which, ``given``
what the user's table binds, ``stacked`` layers that JAX keeps in one tensor, ``undecided`` what is asked back,
``map_weights`` all of it together.
"""
