"""Code of single lessons, in the folders l01 … l20 beside the notebooks."""

from mplab.common.files import course_folder

# The folder lies beside mplab/ in a checkout and inside it in an installation: found in one place,
# both import it as mplab.lessons.
__path__ = [str(course_folder("lessons"))]
