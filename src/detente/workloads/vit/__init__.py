"""ViT: an encoder of pictures."""
