"""KeepAD as a part of other packages."""
