"""The tool loop: a small agent that calls a model and the tools that the model wants, until it wants none."""
