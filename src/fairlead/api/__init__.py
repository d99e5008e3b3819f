"""The HTTP API: `route_table` lists every route, `routes/` has them by what they are about.

`http/` is HTTP itself (start with `server`), `auth/` tokens, `views/` what callers get to see,
`live/` streams of events, `page/` the status page; `service` is what all requests share. Nothing
is imported here: the libraries of the server are optional, and tokens do without them.
"""
