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
    /// The byte of the image where it is, if there is one.
    pub at: Option<Address>,
    /// In words.
    pub what: String,
}

impl Finding {
    /// Something that is lost or wrong.
    pub fn error(path: &[u8], at: Option<Address>, what: impl Into<String>) -> Self {
        Finding { severity: Severity::Error, path: path.to_vec(), at, what: what.into() }
    }

    /// Something odd.
    pub fn warning(path: &[u8], at: Option<Address>, what: impl Into<String>) -> Self {
        Finding { severity: Severity::Warning, path: path.to_vec(), at, what: what.into() }
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

/// Findings up to a number, and how many there were.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    kept: Vec<Finding>,
    errors: u64,
    warnings: u64,
}

impl Findings {
    /// Findings that are kept; more are only counted.
    pub const MAX_KEPT: usize = 10_000;

    /// Adds one.
    pub fn push(&mut self, finding: Finding) {
        match finding.severity {
            Severity::Error => self.errors += 1,
            Severity::Warning => self.warnings += 1,
        }
        if self.kept.len() < Self::MAX_KEPT {
            self.kept.push(finding);
        }
    }

    /// Brings them into an order that does not depend on which thread was first.
    pub fn sort(&mut self) {
        self.kept.sort_by(|a, b| (&a.path, a.at, &a.what).cmp(&(&b.path, b.at, &b.what)));
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
