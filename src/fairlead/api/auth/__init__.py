"""Who may call the API, and how often: tokens, sign-in links, rate limits. Start with `access`."""
