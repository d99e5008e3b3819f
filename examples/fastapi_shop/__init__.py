"""A shop whose web server enqueues and whose workers send mails."""
