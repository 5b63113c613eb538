//! The output of findings, the defects of an image: as text and as JSON.

use super::names;
use crate::cli::output::{self, Streamed};
use crate::cli::style::{self, ERROR, WARNING};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::report::image::{FindingReport, FindingsReport, Place};
use pagefold_control::text;
use pagefold_image::{Address, Finding, Findings, Severity, Space};
use serde::Serialize;
use std::convert::Infallible;

/// Most findings in text output; JSON has all that were recorded.
const MAX_LINES: usize = 200;

/// The beginning of lines on standard error, where all messages of the program have it.
const PROGRAM: &str = "pagefold: ";

/// Formats one line for each finding, escaped, as a result on standard output. The name of a broken rule is at its
/// end, in brackets.
pub fn report(findings: &Findings, colours: bool) -> String {
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

/// Fails if there are errors: "3 things are", followed by `what`.
pub fn check(findings: &Findings, what: &str) -> Result<()> {
    match findings.errors() {
        0 => Ok(()),
        n => {
            let things = text::counted(n, "thing is", "things are");
            Err(failure(findings.damage(), format!("{things} {what}")))
        }
    }
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

/// The JSON of findings: their numbers, and an object for each that was recorded.
pub fn json(findings: &Findings) -> FindingsReport<impl Serialize> {
    let each = || findings.recorded().iter().map(|finding| Ok::<_, Infallible>(finding_json(finding)));
    FindingsReport { errors: findings.errors(), warnings: findings.warnings(), findings: Streamed(each) }
}

fn finding_json(finding: &Finding) -> FindingReport {
    let (path, path_hex) = names::json(&finding.path);
    FindingReport {
        severity: finding.severity.name().into(),
        path,
        path_hex,
        what: finding.what.to_string(),
        rule: finding.rule.map(|rule| rule.to_string()),
        at: finding.at.map(place),
    }
}

/// A place in an image, for JSON.
pub fn place(at: Address) -> Place {
    let (device, metabox) = match at.space {
        Space::Device(device) => (Some(device), None),
        Space::Metabox => (None, Some(true)),
    };
    Place { device, metabox, offset_bytes: at.offset }
}
