"""Where to get what a plain installation leaves out."""


def how_to_install(extra: str) -> str:
    """What to do, in words that work: the package is on no index, so it is installed from a copy of its repository."""
    return f"run pip install '.[{extra}]' in a copy of the repository"
