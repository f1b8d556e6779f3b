"""Tests of `fullgrad.adopt` and `fullgrad.adopting`."""
