"""`python -m unmask`, and what launchers start: `torchrun -m unmask train ...`."""

from unmask.cli import main

if __name__ == "__main__":
    main()
