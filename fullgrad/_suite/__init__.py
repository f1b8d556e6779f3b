"""The cases of the operators, and the tools that check, measure and fuzz them."""
