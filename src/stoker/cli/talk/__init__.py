"""A conversation in the terminal, in parts: messages, keyboard input, output on the screen, commands, and storage."""
