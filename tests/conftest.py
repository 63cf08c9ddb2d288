"""What tests counted is told at the end, from whichever process ran them."""


def pytest_terminal_summary(terminalreporter):
    """Print each ``record_property("told", text)`` of a test that passed."""
    told = [
        value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "told"
    ]
    if told:
        terminalreporter.section("counted")
        for line in told:
            terminalreporter.line(line)
