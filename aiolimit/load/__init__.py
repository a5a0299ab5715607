"""How loaded this process and its machine are, and how much may run at once because of it."""
