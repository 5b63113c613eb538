//! Compresses pages of 4 KiB with a codec that is chosen by name, and decodes and encodes the compressed clusters of EROFS
//! images.
//!
//! ```
//! use pagefold_codec::{COMPRESS_BUF_LEN, Codec, CodecSpec, same_filled};
//!
//! let codec = Codec::new(&CodecSpec::named("zstd"))?; // immutable, shared by all threads
//! let mut stream = codec.stream()?; // the working memory of one operation
//!
//! let mut page = [0; 4096];
//! page[1000..1018].copy_from_slice(b"text in some place");
//! assert_eq!(same_filled(&page), None); // of a page that repeats one word, only the word need be kept
//!
//! let mut compressed = [0; COMPRESS_BUF_LEN];
//! let len = stream.compress(&page, &mut compressed)?;
//! let mut again = [0; 4096];
//! assert_eq!(stream.decompress(&compressed[..len], &mut again)?, 4096);
//! assert_eq!(again, page);
//!
//! for backend in pagefold_codec::table() {
//!     println!("{}: {}", backend.name, backend.summary);
//! }
//! # Ok::<(), pagefold_codec::CodecError>(())
//! ```
//!
//! [`Streams`] holds one stream for each CPU, for callers with many threads. [`cluster`] decodes the compressed streams
//! of images, and [`cluster::encode`] makes them. They are longer than pages and have other formats.
//!
//! # What it is for
//!
//! The store compresses its pages by this crate, and images are read by it. A decoder takes any bytes: corrupt input is
//! an error or arbitrary bytes in the destination, and nothing else.
//!
//! # Limits
//!
//! A source has at most 64 KiB. Compressed output has no frame around it: the caller records its length and the codec
//! that made it. The caller decides which pages to keep raw, where to keep them and how long.
//!
//! # How it works
//!
//! [`same_filled`](same_filled()) runs before any codec and recognises a page that repeats one 8-byte word;
//! [`fill`](fill()) writes such a page again. All other pages go through a codec. Three types have three lifetimes:
//!
//! - [`Codec`] is an algorithm with its level, window and prepared dictionary. It is immutable and shared by all
//!   threads.
//! - [`Stream`] is the working memory of one operation. One thread at a time uses it, through `&mut`.
//! - A call of [`Stream::compress`] or [`Stream::decompress`] borrows a source and a destination.
//!
//! The path of a page: [`Codec::new`] (`codec.rs`) looks the algorithm up by name, once, in the static table
//! (`table.rs`) of [`Backend`]s (`backend.rs`): `lz4.rs`, `lz4hc.rs`, `zstd.rs`, `deflate.rs`, `lzo/`, `c842/`,
//! `numbers/`.
//! [`Streams`] (`streams.rs`) holds one stream per CPU; a caller takes the stream of its CPU, compresses or decompresses,
//! and drops the guard.
//!
//! The crate starts no threads. Its only locks are the mutexes of [`Streams`], one for each CPU; a caller holds one at
//! a time, and only for a codec call and a copy. A stream allocates its memory when it is made and in the warm-up
//! that [`PerCpuStream::new`] runs; later calls allocate nothing, except that lz4hc from level 10 on allocates 64 KiB
//! while it compresses (inside liblz4). A call that fails returns a [`CodecError`] and leaves the stream usable.
//!
//! # Levels and windows
//!
//! The parameters are those of zram's `algorithm_params`. Levels that zram takes and that have a meaning are valid.
//! Other levels, and parameters that an algorithm does not take, are errors.
//!
//! | codec | levels in the kernel | here |
//! |---|---|---|
//! | lz4 | 1 and above: how fast the encoder skips input without matches | up to 65537, liblz4's limit |
//! | lz4hc | 1 to 16 | levels 13 to 16 are the same as 12, the densest encoding |
//! | zstd | -131072 to 22; 0 is 3, the default; negative levels are faster | the same |
//! | deflate | -1 to 9; -1 is 6, the default; 0 does not compress | up to 12; with window bits, up to 9 |
//! | lzo, lzo-rle, 842 | ignored | none |
//! | numbers | not in the kernel | none |
//!
//! Deflate takes window bits: -15 to -9 for raw streams, 9 to 15 for zlib's format, with matches up to 2^9 to 2^15
//! bytes back. The kernel's default is -11. Without window bits matches reach back through the whole page.
//!
//! A new codec is one module with a `BACKEND` constant, an `Algorithm` and a `Stream`, and one line in the table.

// The printing macros panic when the write fails. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod backend;
#[cfg(feature = "testing")]
pub mod c842;
#[cfg(not(feature = "testing"))]
mod c842;
pub mod cluster;
mod codec;
mod deflate;
mod error;
mod fill;
mod isa;
mod liblz4;
mod load;
mod lz4;
mod lz4_block;
mod lz4hc;
#[cfg(feature = "testing")]
pub mod lzo;
#[cfg(not(feature = "testing"))]
mod lzo;
mod numbers;
mod same_filled;
mod streams;
mod table;
mod zstd;

pub use backend::{Backend, COMPRESS_BUF_LEN, Levels, Stream};
pub use codec::{Codec, CodecSpec};
pub use error::CodecError;
pub use fill::fill;
pub use same_filled::same_filled;
pub use streams::{PerCpuStream, StreamGuard, StreamWaits, Streams};
pub use table::{backend, names, table};
