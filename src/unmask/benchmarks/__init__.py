"""Speed and memory: what training, sampling and bounds cost, beside a plain dense implementation of the same work."""
