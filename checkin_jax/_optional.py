"""Installation hints for optional dependencies."""


def how_to_install(extra: str) -> str:
    """Instruction for installing an extra. The package is on no index, so it is installed from its
    repository.
    """
    return f"run pip install '.[{extra}]' in a copy of the repository"
