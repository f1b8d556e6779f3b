"""Projections onto the simplex, the permutahedron and the transport polytope."""
