"""Token reducers of other works, as pure functions on one image: ToMe, EViT, ATS, Zero-TPrune. Torch."""
