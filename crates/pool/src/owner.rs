//! The word that begins each object: who owns it.

/// The owner of an object: 61 bits that only the owner interprets. For a slot of the store they are its page index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(u64);

impl Owner {
    /// Bits of the kind, the lowest of the word. Kind 0 marks a hole.
    pub(crate) const KIND_BITS: u32 = 3;
    /// No owner yet: the object is being written.
    pub(crate) const BUSY: Owner = Owner(1);
    /// The kind of an object that is complete.
    const OWNED: u64 = 2;

    /// Creates an owner with this value, below 2^61.
    pub fn new(value: u64) -> Self {
        debug_assert!(value < 1 << 61);
        Owner(value << Self::KIND_BITS | Self::OWNED)
    }

    /// The owner's own 61 bits.
    pub fn value(self) -> u64 {
        self.0 >> Self::KIND_BITS
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Owner(bits)
    }
}
