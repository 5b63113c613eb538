//! Page codecs behind one contract.
//!
//! Cut by lifetime, so that threading and dictionaries fall out of the types:
//! a [`Codec`] is an algorithm with its parameters and prepared dictionary,
//! immutable and shared; a [`Stream`] is the working memory of one operation,
//! owned by one executor at a time; a call has a source and a destination. The
//! algorithms stand in one static table ([`table`]) and are looked up by name
//! once. [`Streams`] keeps one stream per CPU. Same-filled detection
//! ([`same_filled`]) lives here too, because it is what runs before any codec, and what
//! undoes it ([`fill`]).
//!
//! A new codec is one module with an `Algorithm` and a `Stream`, and one line in
//! the table.
//!
//! Beside the pages stand clusters ([`cluster`]): the streams of compressed images, which are longer, come in
//! formats of their own, and are only read.
//!
//! This crate does not decide what to store raw, where to store anything, or
//! how long: that is the store's policy. It does not frame its output: who stores
//! a compressed page also stores its length and which codec made it.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cluster;
mod codec;
mod deflate;
mod error;
mod fill;
mod liblz4;
mod lz4;
mod lz4hc;
pub mod lzo;
mod same_filled;
mod streams;
mod table;
mod zstd;

pub use codec::{COMPRESS_BUF_LEN, Codec, CodecSpec, Stream};
pub use error::CodecError;
pub use fill::fill;
pub use same_filled::same_filled;
pub use streams::{Executor, StreamGuard, StreamWaits, Streams};
pub use table::{Backend, Levels, backend, names, table};

#[doc(hidden)]
pub mod bench {
    //! What the dispatch benchmark needs to call a back end without the table. Not an interface.
    pub use crate::lz4::{Lz4, Lz4Stream};
    pub use crate::same_filled::variants as same_filled_variants;
}
