//! Frames and their numbers, positions in frames, and handles of objects.

use std::fmt;

/// Bytes in a frame, the unit in which the pool takes memory.
pub const FRAME_LEN: usize = 4096;

/// The number of a frame in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameId(pub(crate) u32);

impl FrameId {
    /// No frame: the end of a chain.
    pub(crate) const NIL: FrameId = FrameId(u32::MAX);

    pub(crate) fn is_nil(self) -> bool {
        self == Self::NIL
    }

    /// The number, below that of frames in the arena.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// A frame that the holder of the value owns: no other value stands for it until it was released.
///
/// A token without a destructor: dropping it leaks the frame.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that is dropped is leaked"]
pub struct Frame {
    id: FrameId,
    /// The number of its arena.
    pub(crate) arena: u32,
}

impl Frame {
    /// # Safety
    /// The frame belongs to the arena of this number, and nothing else owns it.
    pub(crate) unsafe fn new(id: FrameId, arena: u32) -> Self {
        Frame { id, arena }
    }

    /// The number of the frame in its arena.
    pub fn id(&self) -> FrameId {
        self.id
    }
}

/// The most frames per request: an object straddles at most two.
pub const FRAMES_MAX: usize = 2;

/// Up to [`FRAMES_MAX`] frames that the owner of the value has taken.
///
/// A value without a destructor, that cannot be copied: dropping it leaks its frames.
/// [`BackedFrames`](crate::BackedFrames) releases them.
#[derive(Debug, PartialEq, Eq)]
pub struct Frames([Option<Frame>; FRAMES_MAX]);

impl Frames {
    /// An empty set.
    #[inline]
    pub const fn none() -> Self {
        Frames([const { None }; FRAMES_MAX])
    }

    /// The number of frames.
    pub fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Adds a frame. Panics if there is no room for it.
    pub(crate) fn push(&mut self, frame: Frame) {
        let len = self.len();
        self.0[len] = Some(frame);
    }

    /// Takes one frame out.
    pub fn pop(&mut self) -> Option<Frame> {
        self.0.iter_mut().rev().find_map(Option::take)
    }

    /// The numbers of the frames.
    pub fn ids(&self) -> impl Iterator<Item = FrameId> + '_ {
        self.0.iter().flatten().map(Frame::id)
    }
}

/// The position of an object's first byte: frame (32 bits), then offset / 8 (9 bits).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pos(u64);

impl Pos {
    const OFFSET_BITS: u32 = 9;
    pub(crate) const BITS: u32 = 32 + Self::OFFSET_BITS;
    /// No position: the end of a list.
    pub(crate) const NIL: Pos = Pos((1 << Self::BITS) - 1);

    /// The position `offset` bytes into `frame`; `offset` is a multiple of 8 below [`FRAME_LEN`].
    pub(crate) fn new(frame: FrameId, offset: usize) -> Self {
        debug_assert!(offset < FRAME_LEN && offset.is_multiple_of(8) && !frame.is_nil());
        Pos(u64::from(frame.0) << Self::OFFSET_BITS | (offset as u64 / 8))
    }

    pub(crate) fn frame(self) -> FrameId {
        FrameId((self.0 >> Self::OFFSET_BITS) as u32)
    }

    pub(crate) fn offset(self) -> usize {
        (self.0 as usize & ((1 << Self::OFFSET_BITS) - 1)) * 8
    }

    pub(crate) fn is_nil(self) -> bool {
        self == Self::NIL
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Pos(bits & ((1 << Self::BITS) - 1))
    }
}

impl fmt::Debug for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_nil() {
            true => f.write_str("Pos(nil)"),
            false => write!(f, "Pos({}+{})", self.frame().0, self.offset()),
        }
    }
}

/// An object in a pool: its size class and its position. 50 bits, so that owners can pack it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle(u64);

impl Handle {
    /// Bits that [`Handle::to_bits`] uses, from the lowest.
    pub const BITS: u32 = Pos::BITS + 9;

    pub(crate) fn new(class_index: usize, pos: Pos) -> Self {
        Handle((class_index as u64) << Pos::BITS | pos.to_bits())
    }

    pub(crate) fn class_index(self) -> usize {
        (self.0 >> Pos::BITS) as usize
    }

    pub(crate) fn pos(self) -> Pos {
        Pos::from_bits(self.0)
    }

    /// The handle as a number below 2^[`Handle::BITS`].
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Converts the result of [`Handle::to_bits`] back to the handle.
    pub fn from_bits(bits: u64) -> Self {
        Handle(bits)
    }
}
