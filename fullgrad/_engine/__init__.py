"""The engine of everything that is made of functions: how a function of any code is called, remembered and differentiated."""
