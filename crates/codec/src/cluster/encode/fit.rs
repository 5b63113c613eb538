//! The result of an encoder, and the length that its destination has at least.

/// Length of the shortest destination of [`Encoder::fit`](super::Encoder::fit).
pub(super) const DST_MIN_BYTES: usize = 64;

/// The result of [`Encoder::fit`](super::Encoder::fit).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fit {
    /// The length of the beginning of the source that the stream decodes to. It is 0 only for an empty source. It is
    /// not always more than `written_bytes`: data that does not compress is longer as a stream.
    pub consumed_bytes: usize,
    /// The length of the stream, at the front of the destination.
    pub written_bytes: usize,
}
