"""Speed and memory of training, sampling and likelihoods, compared with a plain dense implementation.

`unmask bench` runs the comparisons of this package; the wheel contains them as `unmask.benchmarks`.
"""
