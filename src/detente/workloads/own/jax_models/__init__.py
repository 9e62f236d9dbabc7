"""A user's model in one of JAX's libraries as what a jitted step needs: named arrays and a pure function of them."""
