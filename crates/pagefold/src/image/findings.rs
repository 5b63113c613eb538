//! The output of findings, the defects of an image: as text and as JSON.

use super::names;
use crate::cli::output;
use crate::cli::style::{self, ERROR, WARNING};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_image::{Finding, Findings, Severity, Space};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

/// Most findings in text output; JSON has all that were recorded.
const MAX_LINES: usize = 200;

/// The beginning of lines on standard error, where all messages of the program have it.
const PROGRAM: &str = "pagefold: ";

/// Formats one line for each finding, escaped, as a result on standard output. The name of a broken rule is at its
/// end, in brackets.
pub fn text(findings: &Findings, colours: bool) -> String {
    let rule = |finding: &Finding| finding.rule.map_or(String::new(), |rule| format!(" [{rule}]"));
    lines("", findings, |finding| format!("{}{}\n", line("", finding, colours), rule(finding)))
}

fn lines(prefix: &str, findings: &Findings, line: impl Fn(&Finding) -> String) -> String {
    let mut text = String::new();
    for finding in findings.recorded().iter().take(MAX_LINES) {
        text.push_str(&line(finding));
    }
    let all = findings.errors() + findings.warnings();
    let shown = findings.recorded().len().min(MAX_LINES) as u64;
    if all > shown {
        text.push_str(&format!("{prefix}... and {} more\n", all - shown));
    }
    text
}

/// Prints a finding on standard error.
pub fn print_line(finding: &Finding) {
    output::diagnostics(&format!("{}\n", line(PROGRAM, finding, style::stderr_colours())));
}

/// Formats a finding as a line without its end, escaped.
fn line(prefix: &str, finding: &Finding, colours: bool) -> String {
    let colour = if finding.severity == Severity::Error { ERROR } else { WARNING };
    let severity = style::paint(colours, colour, finding.severity.name());
    let path = match finding.path.is_empty() {
        true => String::new(),
        false => format!("{}: ", names::escaped(&finding.path)),
    };
    format!("{prefix}{severity}: {path}{}", names::escaped(finding.what.as_bytes()))
}

/// The error of a command that found errors, of which `damage` are faults of the image.
pub fn failure(damage: u64, message: impl Into<String>) -> CliError {
    CliError::new(if damage > 0 { Exit::Damaged } else { Exit::Failed }, message)
}

/// Prints findings on standard error. If that fails, the exit code still reports the errors.
pub fn print_text(findings: &Findings) {
    let colours = style::stderr_colours();
    let line = |finding: &Finding| format!("{}\n", line(PROGRAM, finding, colours));
    output::diagnostics(&lines(PROGRAM, findings, line));
}

/// Prints a report as JSON: the fields of `head`, the numbers of findings, and an object for each finding that was
/// recorded.
///
/// JSON objects take many times the memory of their findings, so only one exists at a time.
pub fn print_json(head: Map<String, Value>, findings: &Findings) -> Result<()> {
    output::stream_json(&ReportJson { head, findings })
}

struct ReportJson<'a> {
    head: Map<String, Value>,
    findings: &'a Findings,
}

impl Serialize for ReportJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in &self.head {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry("errors", &self.findings.errors())?;
        map.serialize_entry("warnings", &self.findings.warnings())?;
        map.serialize_entry("findings", &FindingsJson(self.findings))?;
        map.end()
    }
}

struct FindingsJson<'a>(&'a Findings);

impl Serialize for FindingsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.recorded().iter().map(finding_json))
    }
}

fn finding_json(finding: &Finding) -> Value {
    let mut object = Map::new();
    object.insert("severity".into(), json!(finding.severity.name()));
    names::put(&mut object, "path", &finding.path);
    object.insert("what".into(), json!(finding.what));
    object.insert("rule".into(), json!(finding.rule));
    object.insert(
        "at".into(),
        finding.at.map_or(Value::Null, |at| match at.space {
            Space::Device(device) => json!({"device": device, "offset_bytes": at.offset}),
            Space::Metabox => json!({"metabox": true, "offset_bytes": at.offset}),
        }),
    );
    Value::Object(object)
}
