"""The region's state that moto does not hold."""
