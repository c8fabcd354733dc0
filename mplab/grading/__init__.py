"""Grading: assignments go out, notebooks come back, grades go into nbgrader's gradebook.

The notebooks are strangers' programs. They run in a sandbox without anything worth reading,
answer with values, and the grader compares the values outside. `mplab grade` is the door.
"""
