"""Installation hints for optional dependencies."""


def how_to_install(extra: str) -> str:
    """Instruction for installing an extra from the repository, since the package is on no index."""
    return f"run pip install '.[{extra}]' in a copy of the repository"
