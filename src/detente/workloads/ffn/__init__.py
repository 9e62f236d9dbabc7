"""The feed-forward half of a transformer layer."""
