"""The exercises of the lessons: what they ask, and how an answer is checked."""
