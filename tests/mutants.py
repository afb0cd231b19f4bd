"""Break one line at a time and require the tests to notice."""
