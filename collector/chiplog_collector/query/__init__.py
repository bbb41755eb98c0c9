"""Answers to SQL."""
