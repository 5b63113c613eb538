//! How the bytes of a segment come to the thread that works on it.
//!
//! The builder's thread has read those of short segments. Those of a long one are read by the thread that works on it:
//! see `unread`.

use super::buffers::Buffer;
use super::unread::Unread;
use crate::BuildError;
use crate::content::RangeReader;
use std::time::Duration;

/// The bytes of a segment.
pub enum Src {
    /// They are here.
    Bytes(Buffer),
    /// The thread that works on the segment reads them, to its private memory.
    Unread {
        /// Their number.
        len: usize,
        /// Reads them.
        range: Box<dyn RangeReader>,
    },
}

impl Src {
    /// Length, bytes.
    pub fn len(&self) -> usize {
        match self {
            Src::Bytes(bytes) => bytes.len(),
            Src::Unread { len, .. } => *len,
        }
    }

    /// Returns how a thread gets the bytes. Those that are not here are read to `memory`.
    pub fn input<'s>(&'s self, memory: &'s mut Buffer) -> Input<'s> {
        match self {
            Src::Bytes(bytes) => Input::Bytes(bytes),
            Src::Unread { len, range } => Input::Unread(Unread::new(*len, range.as_ref(), memory)),
        }
    }

    /// Returns its memory, if that is not the thread's own.
    pub fn into_memory(self) -> Option<Buffer> {
        match self {
            Src::Bytes(bytes) => Some(bytes),
            Src::Unread { .. } => None,
        }
    }
}

impl From<Vec<u8>> for Src {
    fn from(bytes: Vec<u8>) -> Self {
        Src::Bytes(bytes.into())
    }
}

impl From<Buffer> for Src {
    fn from(bytes: Buffer) -> Self {
        Src::Bytes(bytes)
    }
}

/// The bytes of a segment, for the thread that works on it.
pub enum Input<'s> {
    /// They are here.
    Bytes(&'s [u8]),
    /// They are to be read.
    Unread(Unread<'s>),
}

impl Input<'_> {
    /// Length, bytes.
    pub fn len(&self) -> usize {
        match self {
            Input::Bytes(bytes) => bytes.len(),
            Input::Unread(unread) => unread.len(),
        }
    }

    /// Returns all bytes, which are read if they are not here.
    pub fn all(&mut self) -> Result<&[u8], BuildError> {
        match self {
            Input::Bytes(bytes) => Ok(bytes),
            Input::Unread(unread) => unread.all(),
        }
    }

    /// Time that reading has taken.
    pub fn reading(&self) -> Duration {
        match self {
            Input::Bytes(_) => Duration::ZERO,
            Input::Unread(unread) => unread.reading(),
        }
    }
}
