"""Code of single lessons, in the folders l01 … l19 beside the notebooks.

It is imported from here in a checkout and in an installed package alike.
"""

from mplab.course.files import course_folder

__path__ = [str(course_folder("lessons"))]
