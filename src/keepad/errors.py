"""Errors that a user can cause: one sentence that says what was wrong, with which file, and what to do."""


class KeepADError(Exception):
    """Something the user can put right; the command line prints it as it is and exits 2."""


class ImageError(KeepADError):
    """One image could not be used; in a folder, the others still are."""
