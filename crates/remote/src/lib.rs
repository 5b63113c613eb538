//! Reads objects on HTTP servers as sources of images.
//!
//! [`RemoteSource`] is a [`ByteSource`](pagefold_backing::ByteSource): an object of a fixed length, read by ranges:
//!
//! ```no_run
//! use pagefold_backing::ByteSource;
//! use pagefold_remote::{Options, RemoteSource, Url};
//!
//! let url = Url::parse("https://images.example.org/app.erofs")?;
//! let source = RemoteSource::open(&url, Options::default())?;
//! let mut superblock = [0; 128];
//! source.read_at(1024, &mut superblock)?; // one request for 64 KiB
//! println!("{} bytes, {} requests", source.len_bytes(), source.stats().requests);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it is for
//!
//! Mounting, listing and extracting an image that is on a server, without a copy of it: only what is read is fetched.
//!
//! **One version.** A source is one version of an object for as long as it is open. The server's strong entity tag, or
//! else the time of the last change, is sent with each request *and* compared with each answer, because some servers
//! ignore it. A read of another version fails. An object without either is refused, unless the caller verifies the bytes
//! by a digest ([`Options::is_verified`]).
//!
//! **A deadline.** A read returns the bytes or an error by [`Options::timeout`]. Until then requests are tried again
//! after broken connections and answers such as 503, with pauses that grow. So readers do not see an outage that is
//! shorter.
//!
//! # Limits
//!
//! - The server must answer range requests. An answer with the whole object, with another range, or with a body of
//!   another length is refused.
//! - Ranges are kept in memory only ([`Options::cache_bytes`]), not on disk.
//! - Nothing but HTTP/1.1, and TLS by the certificates of the system. No credentials but the header `Authorization`.
//! - Reads run in the calling threads. A source has threads that fetch ahead of readers that read in order
//!   ([`Options::ahead_threads`]); their requests are not repeated.
//!
//! # How it works
//!
//! A read (`source.rs`) is cut into blocks of 64 KiB, which `blocks.rs` keeps. A missing block is fetched with those
//! behind it that are wanted too, or probably will be: up to 2 MiB in one request, as `link.rs` says after it has seen the
//! times of others. `passed.rs` says which blocks leave first, and `prefetch.rs` fetches those of a list. Other readers of a block that is on
//! its way wait for it, and `ahead.rs` fetches what follows a sequence. `retry.rs` repeats a request until the deadline; `client.rs` sends it and follows redirects, and
//! `answer.rs` judges the answer, with the parsers of `headers.rs`. `url.rs` has the names of objects.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod ahead;
mod answer;
mod blocks;
mod client;
mod error;
pub mod headers;
mod link;
mod passed;
mod prefetch;
mod retry;
mod source;
mod url;

pub use error::RemoteError;
pub use source::{Options, RemoteSource, RemoteStats};
pub use url::{Secret, Url, UrlError};
