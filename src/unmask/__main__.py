"""Run the command line as `python -m unmask` or `torchrun -m unmask train ...`."""

from unmask.cli import main

if __name__ == "__main__":
    main()
