"""Rules about the source itself: each is a function from a root folder to what breaks it there."""
