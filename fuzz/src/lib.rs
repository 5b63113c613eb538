//! The parts that targets share: readers that agree with slow references, media and files in memory, checks that hold
//! for every image, and hostile images.

pub mod codec;
pub mod hostile;
pub mod image;
pub mod media;

/// The number of four bytes at an offset, in the order of this machine.
pub fn native_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// The number of eight bytes at an offset, in the order of this machine.
pub fn native_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Changes that end an input: each is a position of two bytes, and a value.
pub fn damages(recipe: &mut impl Iterator<Item = u8>) -> impl Iterator<Item = (usize, u8)> {
    std::iter::from_fn(move || {
        let (high, low, byte) = (recipe.next()?, recipe.next()?, recipe.next()?);
        Some((usize::from(high) << 8 | usize::from(low), byte))
    })
}
