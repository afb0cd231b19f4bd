"""Every mutation still names text that exists, and tests that exist."""
