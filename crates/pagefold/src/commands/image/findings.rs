//! What is wrong with an image: lines for people, objects in JSON.

use super::names;
use crate::cli::output;
use pagefold_image::{Finding, Findings, Severity, Space};
use serde_json::{Map, Value, json};

/// Findings that are printed for people; JSON has all that were kept.
const MAX_LINES: usize = 200;

/// One line for each, escaped.
pub fn text(findings: &Findings, colours: bool) -> String {
    let mut text = String::new();
    for finding in findings.kept().iter().take(MAX_LINES) {
        let colour = if finding.severity == Severity::Error { "1;31" } else { "1;33" };
        let severity = output::paint(colours, colour, finding.severity.name());
        let path = match finding.path.is_empty() {
            true => String::new(),
            false => format!("{}: ", names::escaped(&finding.path)),
        };
        text.push_str(&format!("{severity}: {path}{}\n", names::escaped(finding.what.as_bytes())));
    }
    let all = findings.errors() + findings.warnings();
    let shown = findings.kept().len().min(MAX_LINES) as u64;
    if all > shown {
        text.push_str(&format!("... and {} more\n", all - shown));
    }
    text
}

/// Prints them for people on standard error, beside what is on standard output. If nothing can be printed there, the exit code
/// still says that something is wrong.
pub fn tell(findings: &Findings) {
    output::diagnostics(&text(findings, false));
}

/// An object for each.
pub fn json(findings: &Findings) -> Value {
    findings.kept().iter().map(one).collect()
}

fn one(finding: &Finding) -> Value {
    let mut object = Map::new();
    object.insert("severity".into(), json!(finding.severity.name()));
    names::put(&mut object, "path", &finding.path);
    object.insert("what".into(), json!(finding.what));
    object.insert(
        "at".into(),
        finding.at.map_or(Value::Null, |at| match at.space {
            Space::Device(device) => json!({"device": device, "offset_bytes": at.offset}),
            Space::Metabox => json!({"metabox": true, "offset_bytes": at.offset}),
        }),
    );
    Value::Object(object)
}
