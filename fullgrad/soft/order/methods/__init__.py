"""The methods by which an order is made soft."""
