//! What is wrong with an image: lines for people, objects in JSON.

use super::names;
use crate::cli::output;
use crate::failure::Outcome;
use pagefold_image::{Finding, Findings, Severity, Space};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
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

/// Prints a report as JSON: the fields of `head`, how many findings there are, and an object for each that was kept.
///
/// Objects take many times the memory of their findings, so only one of them is made at a time.
pub fn print_json(head: Map<String, Value>, findings: &Findings) -> Outcome<()> {
    output::json_in_parts(&Report { head, findings })
}

struct Report<'a> {
    head: Map<String, Value>,
    findings: &'a Findings,
}

impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in &self.head {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry("errors", &self.findings.errors())?;
        map.serialize_entry("warnings", &self.findings.warnings())?;
        map.serialize_entry("findings", &Kept(self.findings))?;
        map.end()
    }
}

struct Kept<'a>(&'a Findings);

impl Serialize for Kept<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.kept().iter().map(one))
    }
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
