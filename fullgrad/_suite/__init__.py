"""The cases of the operators, and the tools that check, measure and show them: benchmark, audit, fuzzing, command line."""
