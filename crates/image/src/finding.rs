//! Findings: the faults of an image that a tool reports while it goes on, instead of stopping at the first error.
//!
//! [`Findings`] records at most [`MAX_RECORDED`](Findings::MAX_RECORDED) of them, in at most
//! [`MAX_RECORDED_BYTES`](Findings::MAX_RECORDED_BYTES), and counts the rest, because an image can provoke any number
//! of them. It has no lock: tools with several threads put it into a mutex.

use crate::rules::{Rule, Severity};
use crate::{Address, ImageError};
use pagefold_sys::SysError;
use std::fmt;

/// One fault of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The path from the root, `/` first; empty if the finding concerns the image as a whole.
    pub path: Vec<u8>,
    /// The byte of the file where the fault begins, if it concerns a part of the contents.
    pub offset: Option<u64>,
    /// The address of the fault in the image, if it has one.
    pub at: Option<Address>,
    /// The description, for people.
    pub what: String,
    /// Whether the image is at fault. If not, a limit, the memory, the medium or the target of an extraction was.
    pub is_damage: bool,
    /// The name of the broken [rule](crate::rules), if the fault breaks one that has a name.
    pub rule: Option<&'static str>,
}

impl Finding {
    /// A finding of severity [`Severity::Error`] for which the image is at fault.
    pub fn error(path: &[u8], at: Option<Address>, what: impl Into<String>) -> Self {
        let severity = Severity::Error;
        Finding {
            severity,
            path: path.to_vec(),
            offset: None,
            at,
            what: what.into(),
            is_damage: true,
            rule: None,
        }
    }

    /// A finding of severity [`Severity::Error`] for which the image is not at fault.
    pub fn failure(path: &[u8], what: impl Into<String>) -> Self {
        Finding { is_damage: false, ..Finding::error(path, None, what) }
    }

    /// A finding of severity [`Severity::Warning`].
    pub fn warning(path: &[u8], at: Option<Address>, what: impl Into<String>) -> Self {
        Finding { severity: Severity::Warning, ..Finding::error(path, at, what) }
    }

    /// A finding of an image that breaks `rule`, with the rule's severity.
    pub fn breaks(rule: &Rule, path: &[u8], at: Option<Address>, what: impl Into<String>) -> Self {
        Finding { severity: rule.severity, ..Finding::error(path, at, what).named(rule) }
    }

    /// The same finding, with the name of the broken rule.
    pub(crate) fn named(self, rule: &Rule) -> Self {
        Finding { rule: Some(rule.name), ..self }
    }

    /// The same finding, for the file's contents from byte `offset` on.
    pub fn starting_at(self, offset: u64) -> Self {
        Finding { offset: Some(offset), ..self }
    }

    /// A finding for an error of this crate, with the error's address and causes.
    pub fn of(path: &[u8], error: &ImageError) -> Self {
        let is_damage = error.is_damage();
        Finding { is_damage, ..Finding::error(path, error.address(), with_causes(error)) }
    }

    /// The same finding, with a description made from the present one.
    pub fn described(self, describe: impl FnOnce(&str) -> String) -> Self {
        Finding { what: describe(&self.what), ..self }
    }

    /// A finding for a file that could not be processed completely.
    pub(crate) fn of_file_error(path: &[u8], error: FileError) -> Self {
        Finding { is_damage: error.is_damage, ..Finding::failure(path, error.what) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = String::from_utf8_lossy(&self.path);
        write!(f, "{}: {}: {}", self.severity.name(), path.escape_debug(), self.what)
    }
}

/// Why a file could not be processed completely.
#[derive(Debug)]
pub(crate) struct FileError {
    /// The description, for people.
    pub(crate) what: String,
    /// Whether the image is at fault.
    pub(crate) is_damage: bool,
}

impl FileError {
    /// An error for which the image is not at fault.
    pub(crate) fn outside(what: impl Into<String>) -> Self {
        FileError { what: what.into(), is_damage: false }
    }
}

impl From<ImageError> for FileError {
    fn from(error: ImageError) -> Self {
        FileError { what: with_causes(&error), is_damage: error.is_damage() }
    }
}

impl From<SysError> for FileError {
    fn from(error: SysError) -> Self {
        FileError::outside(error.to_string())
    }
}

/// Formats an error and its chain of causes in one line.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// A bounded list of findings, with counts of all that were added.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    recorded: Vec<Finding>,
    recorded_bytes: usize,
    errors: u64,
    damage: u64,
    warnings: u64,
}

impl Findings {
    /// The most findings that are recorded; more are only counted.
    pub const MAX_RECORDED: usize = 10_000;
    /// The most bytes of recorded findings, paths and descriptions included. A finding that does not fit is only
    /// counted. The path of each finding may have 256 KiB.
    pub const MAX_RECORDED_BYTES: usize = 2 << 20;

    /// Counts a finding, and records it if there is room.
    pub fn push(&mut self, finding: Finding) {
        match finding.severity {
            Severity::Error => {
                self.errors += 1;
                self.damage += u64::from(finding.is_damage);
            }
            Severity::Warning => self.warnings += 1,
        }
        let bytes = size_of::<Finding>() + finding.path.len() + finding.what.len();
        if self.recorded.len() < Self::MAX_RECORDED && self.recorded_bytes + bytes <= Self::MAX_RECORDED_BYTES
        {
            self.recorded_bytes += bytes;
            self.recorded.push(finding);
        }
    }

    /// Sorts the recorded findings by path, then by offset in the file, then by address in the image. This makes the
    /// order independent of the timing of threads.
    pub fn sort(&mut self) {
        fn key(f: &Finding) -> impl Ord {
            (&f.path, f.offset, f.at, &f.what)
        }
        self.recorded.sort_by(|a, b| key(a).cmp(&key(b)));
    }

    /// The recorded findings.
    pub fn recorded(&self) -> &[Finding] {
        &self.recorded
    }

    /// Number of errors, recorded or not.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Number of errors for which the image is at fault, recorded or not.
    pub fn damage(&self) -> u64 {
        self.damage
    }

    /// Number of warnings, recorded or not.
    pub fn warnings(&self) -> u64 {
        self.warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_beyond_the_byte_limit_are_counted_and_not_recorded() {
        let mut findings = Findings::default();
        let long = vec![b'x'; 200 << 10];
        for _ in 0..100 {
            findings.push(Finding::error(&long, None, "it is wrong"));
            findings.push(Finding::warning(b"/short", None, "it is odd"));
        }
        let bytes: usize =
            findings.recorded().iter().map(|finding| finding.path.len() + finding.what.len()).sum();
        assert!(bytes <= Findings::MAX_RECORDED_BYTES, "{bytes}");
        assert_eq!((findings.errors(), findings.warnings()), (100, 100));
        // After a finding that is too long, shorter ones are still recorded.
        assert!(findings.recorded().iter().filter(|finding| finding.path == b"/short").count() > 90);
    }

    #[test]
    fn findings_are_sorted_by_path_then_offset_then_address_as_numbers() {
        let at = |path: &str, offset: u64, at: u64| {
            let what = format!("bytes {offset} to {}", offset + 1);
            Finding::error(path.as_bytes(), Some(Address::image(at)), what).starting_at(offset)
        };
        // The addresses of a file's parts need not ascend with their offsets.
        let wanted = [
            Finding::error(b"/a", None, "owner"),
            at("/a", 2, 900),
            at("/a", 102_400, 500),
            at("/a", 10_002_432, 100),
            at("/a", 10_002_432, 1000),
            at("/b", 1, 1),
        ];
        let mut findings = Findings::default();
        wanted.iter().rev().for_each(|finding| findings.push(finding.clone()));
        findings.sort();
        assert_eq!(findings.recorded(), wanted);
    }
}
