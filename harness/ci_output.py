"""A CI report in the two forms that CI servers read: JUnit XML and GitHub annotations."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from collections.abc import Iterator

from harness.ci import CiReport, Result
from harness.guard import RULES
from harness.verdict import show


def junit(report: CiReport) -> str:
    """One suite for the guard (a case a rule) and one a judged stage (a case a check, or one for the stage)."""
    root = xml.Element("testsuites", name="plow-bringup ci")
    suite = _suite(root, "guard")
    names = [rule.__name__ for rule in RULES]
    for name in dict.fromkeys([f.rule for f in report.findings] + names):
        _case(suite, "guard", name, [f.line() for f in report.findings if f.rule == name and f.red])
    for result in report.results:
        label = f"{result.bringup}.{result.name}"
        suite = _suite(root, label, result.seconds)
        for check in result.checks:
            _case(suite, label, str(check["name"]), [] if check["ok"] else [check_line(check)])
        _case(suite, label, "verdict", [] if result.green else [f"{result.verdict}: {'; '.join(result.reasons)}"])
    for suite in root:
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(sum(len(case) > 0 for case in suite)))
    xml.indent(root)
    return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: xml.Element, name: str, seconds: float = 0.0) -> xml.Element:
    return xml.SubElement(root, "testsuite", name=name, time=f"{seconds:.3f}")


def _case(suite: xml.Element, group: str, name: str, failures: list[str]) -> None:
    case = xml.SubElement(suite, "testcase", classname=group, name=name)
    if failures:
        xml.SubElement(case, "failure", message=failures[0]).text = "\n".join(failures)


def check_line(check: dict[str, object]) -> str:
    """ "error: measured 0.5, must be <= 0.1 (repeat: ...)"."""
    must = f"must be {check['relation']} {show(check['threshold'])}" if check["relation"] != "info" else "information"
    return f"{check['name']}: measured {show(check['measured'])}, {must} (repeat: {check['command']})"


def github(report: CiReport) -> Iterator[str]:
    """Workflow commands: an error for each red finding and stage, a notice for what a reviewer must see."""
    for finding in report.findings:
        level = "error" if finding.red else "notice"
        place = f"file={_property(finding.path)}," if finding.path else ""
        yield f"::{level} {place}title={_property('plow guard: ' + finding.rule)}::{_message(finding.what)}"
    for result in report.results:
        if not result.green:
            yield f"::error title={_property(title(result))}::{_message('; '.join(result.reasons) or result.verdict)}"


def title(result: Result) -> str:
    return f"plow {result.bringup} stage {result.stage} {result.name}: {result.verdict}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
