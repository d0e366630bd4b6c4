"""`planpaint bench chaos`: kills everything at random while jobs run, and proves afterwards that nothing was lost."""
