"""Scoring of millions: shards of images, scored by processes of this machine or of a Ray cluster. No torch."""
