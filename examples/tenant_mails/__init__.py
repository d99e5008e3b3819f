"""Mails for many companies: none of them waits for the newsletter of another."""
