"""The cases of the operators, and the tools that check, measure and show them: benchmark, fuzzing, command line."""
