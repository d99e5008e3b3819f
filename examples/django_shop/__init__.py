"""A shop with Django: orders in the database, receipts by Django's tasks."""
