"""What checks, measures and shows the operators: their cases, the benchmark, the command line."""
