//! Little-endian numbers as the disk has them, and the one macro that makes structures of them.
//!
//! The numbers have no alignment, so a structure of them has no padding: its size in memory is its size on
//! disk, which the macro asserts, and where a field lies follows from the order in which it is written down.

use std::fmt;

/// Something that can stand in a structure on disk.
pub trait Field: Sized + Copy {
    /// How many bytes it takes.
    const LEN: usize;

    /// Its value, from the bytes that begin at `at`; bytes that are not there count as zero.
    fn take(bytes: &[u8], at: usize) -> Self;

    /// Writes it to where it begins in `bytes`; what has no room is left out.
    fn put(&self, bytes: &mut [u8], at: usize);
}

impl<const N: usize> Field for [u8; N] {
    const LEN: usize = N;

    fn take(bytes: &[u8], at: usize) -> Self {
        bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    fn put(&self, bytes: &mut [u8], at: usize) {
        if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *place = *self;
        }
    }
}

impl Field for u8 {
    const LEN: usize = 1;

    fn take(bytes: &[u8], at: usize) -> Self {
        bytes.get(at).copied().unwrap_or(0)
    }

    fn put(&self, bytes: &mut [u8], at: usize) {
        if let Some(place) = bytes.get_mut(at) {
            *place = *self;
        }
    }
}

macro_rules! number {
    ($name:ident, $native:ty, $len:literal) => {
        #[doc = concat!("A little-endian `", stringify!($native), "` without alignment.")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name([u8; $len]);

        impl $name {
            /// The number.
            pub const fn get(self) -> $native {
                <$native>::from_le_bytes(self.0)
            }

            /// As it is on disk.
            pub const fn new(value: $native) -> Self {
                $name(value.to_le_bytes())
            }
        }

        impl Field for $name {
            const LEN: usize = $len;

            fn take(bytes: &[u8], at: usize) -> Self {
                $name(<[u8; $len]>::take(bytes, at))
            }

            fn put(&self, bytes: &mut [u8], at: usize) {
                self.0.put(bytes, at);
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.get())
            }
        }
    };
}

number!(Le16, u16, 2);
number!(Le32, u32, 4);
number!(Le64, u64, 8);

/// Declares a structure on disk: `Name: bytes { fields in order }`. It gets `LEN`, `parse` and `encode`, and
/// the build fails if the fields do not add up to the length.
macro_rules! on_disk {
    ($(#[$meta:meta])* pub struct $name:ident: $len:literal {
        $($(#[$field_meta:meta])* pub $field:ident: $kind:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $kind,)*
        }

        const _: () = assert!(size_of::<$name>() == $len);
        const _: () = assert!(align_of::<$name>() == 1);

        impl $name {
            /// Bytes on disk.
            pub const LEN: usize = $len;

            /// The fields, as they stand.
            pub fn parse(bytes: &[u8; $len]) -> Self {
                $name {
                    $($field: $crate::format::le::Field::take(bytes, ::std::mem::offset_of!($name, $field)),)*
                }
            }

            /// The bytes that [`parse`](Self::parse) gives this for.
            pub fn encode(&self) -> [u8; $len] {
                let mut bytes = [0; $len];
                $($crate::format::le::Field::put(
                    &self.$field,
                    &mut bytes,
                    ::std::mem::offset_of!($name, $field),
                );)*
                bytes
            }
        }
    };
}

pub(crate) use on_disk;

#[cfg(test)]
mod tests {
    use super::*;

    on_disk! {
        /// One of each.
        pub struct Mixed: 18 {
            /// A.
            pub a: u8,
            /// B.
            pub b: Le64,
            /// C.
            pub c: [u8; 3],
            /// D.
            pub d: Le16,
            /// E.
            pub e: Le32,
        }
    }

    #[test]
    fn fields_lie_one_behind_the_other_without_padding() {
        let bytes: [u8; 18] = std::array::from_fn(|i| i as u8);
        let mixed = Mixed::parse(&bytes);
        assert_eq!(mixed.a, 0);
        assert_eq!(mixed.b.get(), 0x0807_0605_0403_0201);
        assert_eq!(mixed.c, [9, 10, 11]);
        assert_eq!(mixed.d.get(), 0x0d0c);
        assert_eq!(mixed.e.get(), 0x1110_0f0e);
        assert_eq!((mixed.encode(), Mixed::LEN), (bytes, 18));
    }

    #[test]
    fn a_field_past_the_end_is_zero() {
        assert_eq!(Le32::take(&[1, 2, 3], 0).get(), 0);
        assert_eq!(Le16::take(&[1, 2, 3], usize::MAX).get(), 0);
        assert_eq!(u8::take(&[], 0), 0);
    }
}
