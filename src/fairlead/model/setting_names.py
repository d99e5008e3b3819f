"""Where settings stand, by name: texts of the command line need no more of them."""

FILE = "fairlead.toml"
VARIABLE = "FAIRLEAD_URL"
LEDGER = "FAIRLEAD_LEDGER"
REQUIRE = "FAIRLEAD_REQUIRE_URL"  # set: nothing but a broker that somebody named will do
