//! What is wrong with an image, told so that one can go on: a list instead of a first error.

use crate::{Address, ImageError};
use std::fmt;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Odd, and nothing is lost by it.
    Warning,
    /// Something cannot be read, or is not what it should be.
    Error,
}

impl Severity {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The path from the root, `/` first; empty if it is about the image as a whole.
    pub path: Vec<u8>,
    /// The byte of the file where it begins, if it is about a part of its contents.
    pub offset: Option<u64>,
    /// The byte of the image where it is, if there is one.
    pub at: Option<Address>,
    /// In words.
    pub what: String,
}

impl Finding {
    /// Something that is lost or wrong.
    pub fn error(path: &[u8], at: Option<Address>, what: impl Into<String>) -> Self {
        Finding { severity: Severity::Error, path: path.to_vec(), offset: None, at, what: what.into() }
    }

    /// Something odd.
    pub fn warning(path: &[u8], at: Option<Address>, what: impl Into<String>) -> Self {
        Finding { severity: Severity::Warning, path: path.to_vec(), offset: None, at, what: what.into() }
    }

    /// The same, about the contents of the file from this byte on.
    pub(crate) fn starting_at(self, offset: u64) -> Self {
        Finding { offset: Some(offset), ..self }
    }

    /// An error of reading, with its place.
    pub fn of(path: &[u8], error: &ImageError) -> Self {
        Finding::error(path, error.address(), with_causes(error))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = String::from_utf8_lossy(&self.path);
        write!(f, "{}: {}: {}", self.severity.name(), path.escape_debug(), self.what)
    }
}

/// An error with what caused it, in one line.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Findings up to a number and a weight, and how many there were.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    kept: Vec<Finding>,
    kept_bytes: usize,
    errors: u64,
    warnings: u64,
}

impl Findings {
    /// Findings that are kept; more are only counted.
    pub const MAX_KEPT: usize = 10_000;
    /// Bytes of all that are kept, paths and words included; what does not fit is only counted. A path may have a quarter
    /// of a MiB, and every finding has one.
    pub const MAX_KEPT_BYTES: usize = 2 << 20;

    /// Adds one.
    pub fn push(&mut self, finding: Finding) {
        match finding.severity {
            Severity::Error => self.errors += 1,
            Severity::Warning => self.warnings += 1,
        }
        let bytes = size_of::<Finding>() + finding.path.len() + finding.what.len();
        if self.kept.len() < Self::MAX_KEPT && self.kept_bytes + bytes <= Self::MAX_KEPT_BYTES {
            self.kept_bytes += bytes;
            self.kept.push(finding);
        }
    }

    /// Brings them into an order that does not depend on which thread was first: by path, then by the place in the file, then
    /// by that in the image.
    pub fn sort(&mut self) {
        fn key(f: &Finding) -> impl Ord {
            (&f.path, f.offset, f.at, &f.what)
        }
        self.kept.sort_by(|a, b| key(a).cmp(&key(b)));
    }

    /// Those that were kept.
    pub fn kept(&self) -> &[Finding] {
        &self.kept
    }

    /// How many are errors, kept or not.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// How many are warnings, kept or not.
    pub fn warnings(&self) -> u64 {
        self.warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_weighed_and_counted() {
        let mut findings = Findings::default();
        let long = vec![b'x'; 200 << 10];
        for _ in 0..100 {
            findings.push(Finding::error(&long, None, "it is wrong"));
            findings.push(Finding::warning(b"/short", None, "it is odd"));
        }
        let bytes: usize =
            findings.kept().iter().map(|finding| finding.path.len() + finding.what.len()).sum();
        assert!(bytes <= Findings::MAX_KEPT_BYTES, "{bytes}");
        assert_eq!((findings.errors(), findings.warnings()), (100, 100));
        // A long one does not keep short ones out.
        assert!(findings.kept().iter().filter(|finding| finding.path == b"/short").count() > 90);
    }

    #[test]
    fn places_are_sorted_as_numbers() {
        let at = |path: &str, offset: u64, at: u64| {
            let what = format!("bytes {offset} to {}", offset + 1);
            Finding::error(path.as_bytes(), Some(Address::image(at)), what).starting_at(offset)
        };
        // The parts of a file do not lie in an image in the order in which they are in the file.
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
        assert_eq!(findings.kept(), wanted);
    }
}
