"""Code of single lessons: that of lesson 16 lies in the folder l16, beside the notebook.

`from mplab.lessons.l16 import figures` works in a checkout and in an installed package.
"""

from mplab.course.files import course_folder

__path__ = [str(course_folder("lessons"))]
