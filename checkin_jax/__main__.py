"""`python -m checkin_jax` is the command `checkin`."""

from checkin_jax.cli import main

if __name__ == "__main__":
    main()
