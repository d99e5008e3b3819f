"""Guards of the status page: what its files are served with."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_FILES = "fairlead/api/page/static_files.py"
_TESTS = "tests/api/page/test_static_files.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "policy of the page",
        "nothing inline, and nothing of another origin, runs in the page",
        _TESTS + "test_nothing_inline_and_nothing_of_others_may_run_in_the_page",
        (
            Mutant(_FILES, (("\"script-src 'self'\"", "\"script-src 'self' 'unsafe-inline'\""),)),
            Mutant(_FILES, (('    "content-security-policy": CONTENT_SECURITY_POLICY,\n', ""),)),
        ),
    ),
    Guard(
        "slash of the page",
        "a page that is mounted finds its files",
        _TESTS + "test_a_mounted_page_without_its_slash_leads_to_the_one_with_it",
        (
            Mutant(
                _FILES,
                (('if path == "/" and not connection["path"].endswith("/"):', "if False:"),),
            ),
        ),
    ),
    Guard(
        "texts of the page",
        "what a name or an error says is shown, never run",
        _TESTS + "test_no_text_can_become_markup_or_code",
        (
            Mutant(
                "fairlead/api/page/table.js",
                (
                    (
                        "if (node.textContent !== value) node.textContent = value;",
                        "node.innerHTML = value;",
                    ),
                ),
            ),
        ),
    ),
)
