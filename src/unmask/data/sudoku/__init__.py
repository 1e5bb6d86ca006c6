"""Sudoku by the thousand: a solver of many grids at once, puzzles with one solution, and the symmetries of both."""
