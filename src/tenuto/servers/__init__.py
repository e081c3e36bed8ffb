"""What is offered to people and programs outside: one table of operations, and what renders it."""
