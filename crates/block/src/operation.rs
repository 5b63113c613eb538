//! The kinds of requests to a device.

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading bytes.
    Read,
    /// Storing bytes.
    Write,
    /// Discarding bytes that are no longer needed.
    Discard,
    /// Making bytes zero.
    WriteZeroes,
    /// Making finished writes durable.
    Flush,
}

/// All operations, in the order of reports.
pub const OPERATIONS: [Operation; 5] =
    [Operation::Read, Operation::Write, Operation::Discard, Operation::WriteZeroes, Operation::Flush];

impl Operation {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Discard => "discard",
            Operation::WriteZeroes => "write_zeroes",
            Operation::Flush => "flush",
        }
    }
}
