"""Import this where processes that typeset are forked: they then inherit fonts and parsers."""

from mplab.course.grading.sanitise import rendered_markdown

rendered_markdown("$x$")
