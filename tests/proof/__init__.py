"""`make proof`: the reference solutions of public benchmarks, run through the agent on the benchmarks' own objects."""
