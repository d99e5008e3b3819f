"""A shop with Flask: orders in a database, receipts by workers."""
