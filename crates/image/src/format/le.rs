//! Little-endian integers, and the macro that declares structures on disk.
//!
//! The integers are `zerocopy`'s, which proves at compile time that each structure has no padding and that any bytes
//! of its length are a valid value, so one declaration both parses and encodes. The integers have an alignment of 1,
//! so the order of the fields determines their offsets.

pub use zerocopy::little_endian::{U16 as Le16, U32 as Le32, U64 as Le64};

/// Declares a structure on disk, `Name: bytes { fields in order }`, with `LEN`, `parse` and `encode`. The build fails
/// if the fields do not add up to the length.
macro_rules! on_disk {
    ($(#[$meta:meta])* pub struct $name:ident: $len:literal {
        $($(#[$field_meta:meta])* pub $field:ident: $kind:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $kind,)*
        }

        impl $name {
            /// Bytes on disk.
            pub const LEN: usize = $len;

            /// A structure whose fields are all zero.
            pub fn zeroed() -> Self {
                ::zerocopy::FromZeros::new_zeroed()
            }

            /// Parses the structure. The build fails if `LEN` is not its size.
            pub fn parse(bytes: &[u8; $len]) -> Self {
                ::zerocopy::transmute!(*bytes)
            }

            /// Encodes the structure; the inverse of [`parse`](Self::parse).
            pub fn encode(&self) -> [u8; $len] {
                ::zerocopy::transmute!(*self)
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
    fn fields_follow_each_other_without_padding() {
        let bytes: [u8; 18] = std::array::from_fn(|i| i as u8);
        let mixed = Mixed::parse(&bytes);
        assert_eq!(mixed.a, 0);
        assert_eq!(mixed.b.get(), 0x0807_0605_0403_0201);
        assert_eq!(mixed.c, [9, 10, 11]);
        assert_eq!(mixed.d.get(), 0x0d0c);
        assert_eq!(mixed.e.get(), 0x1110_0f0e);
        assert_eq!((mixed.encode(), Mixed::LEN), (bytes, 18));
        assert_eq!(Mixed::zeroed().encode(), [0; 18]);
    }
}
