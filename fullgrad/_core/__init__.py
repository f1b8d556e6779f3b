"""The parts that an operator is made of: bases, rules written once, checks of arguments, noise."""
