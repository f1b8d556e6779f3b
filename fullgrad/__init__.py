from fullgrad._function import Function
__all__=["Function"]
