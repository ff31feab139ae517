"""The current activity of the engines: `/engine/state` and `/engine/events`."""
