"""A conversation in the terminal, in parts: what was said, what is typed, what is shown, and what is kept."""
