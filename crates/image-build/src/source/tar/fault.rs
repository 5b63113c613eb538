//! Why a member of an archive is not taken.

use crate::BuildError;

/// Why a member is not taken.
#[derive(Debug)]
pub(super) enum Fault {
    /// The archive's fault.
    Refused(String),
    /// The archive cannot be read.
    Build(BuildError),
}

impl Fault {
    pub(super) fn refused(what: impl Into<String>) -> Self {
        Fault::Refused(what.into())
    }

    pub(super) fn in_record(self, key: &[u8]) -> Self {
        match self {
            Fault::Refused(what) => Fault::Refused(format!("pax record {}: {what}", key.escape_ascii())),
            fault => fault,
        }
    }
}

impl From<BuildError> for Fault {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Refused { what, .. } => Fault::Refused(what),
            error => Fault::Build(error),
        }
    }
}
