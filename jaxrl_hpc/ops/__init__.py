"""Stateless maths: returns, losses, exploration, optimisation, statistics."""
