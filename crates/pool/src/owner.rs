//! The word that begins each object: who owns it.

/// The owner of an object: a kind, and 61 bits that only the owner interprets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(u64);

/// The kind of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerKind {
    /// No owner yet: the object is being written.
    Busy = 1,
    /// A slot of the store; the value is its page index.
    Slot = 2,
    /// A record of several pages compressed as one.
    Cluster = 3,
    /// A record of equal pages.
    Shared = 4,
}

impl Owner {
    /// Bits of the kind, the lowest of the word. Kind 0 marks a hole.
    pub(crate) const KIND_BITS: u32 = 3;
    pub(crate) const BUSY: Owner = Owner(OwnerKind::Busy as u64);

    /// Creates an owner of this kind with this value, below 2^61.
    pub fn new(kind: OwnerKind, value: u64) -> Self {
        debug_assert!(value < 1 << 61);
        Owner(value << Self::KIND_BITS | kind as u64)
    }

    /// The kind.
    pub fn kind(self) -> OwnerKind {
        match self.0 & ((1 << Self::KIND_BITS) - 1) {
            2 => OwnerKind::Slot,
            3 => OwnerKind::Cluster,
            4 => OwnerKind::Shared,
            _ => OwnerKind::Busy,
        }
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
