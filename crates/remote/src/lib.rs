//! Reads objects on HTTP servers, in buckets and in registries as sources of images.
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
//! source.read_at(1024, &mut superblock)?; // one request for 32 KiB
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
//! ignore it. A read of another version fails. Where the caller verifies the bytes by a digest ([`Options::is_verified`]),
//! they decide, and neither is sent nor compared; without a digest an object that has neither is refused.
//!
//! **A deadline.** A read returns the bytes or an error by [`Options::timeout`]. Until then requests are tried again
//! after broken connections and answers such as 503, with pauses that grow. So readers do not see an outage that is
//! shorter. All reads of a [`DeadlineScope`](pagefold_backing::DeadlineScope) share its deadline. For a second after such a
//! read has failed at its deadline, those of the same block fail too, unless the store answers a short attempt.
//!
//! **A cache.** Ranges that were read stay in memory ([`Options::cache_bytes`]) and, if the caller has opened one, in a
//! [`cache`] on disk ([`Options::cache`]), which all processes of a user share.
//!
//! # Limits
//!
//! - The server must answer range requests, unless the caller has a [`Spool`] for whole objects. An answer with another
//!   range, or with a body of another length, is refused.
//! - Nothing but HTTP/1.1, and TLS by the certificates of the system. A plain URL has no credentials but the header
//!   `Authorization`; [`s3`], [`azure`], [`gcs`] and [`oci`] have those of their stores.
//! - Reads run in the calling threads. A source has threads that fetch ahead of readers that read in order
//!   ([`Options::ahead_threads`]); their requests are not repeated.
//!
//! # How it works
//!
//! A read (`source.rs`) is cut into blocks of 32 KiB, which `blocks.rs` keeps. A missing block is fetched by `object.rs`
//! with those after it that are wanted too, or probably will be: up to 2 MiB in one request, as `link.rs` says after it
//! has seen the times of others. `outage.rs` lets reads of a block that is out of reach fail together. `eviction.rs` says
//! which blocks are evicted first, and `first_hashes.rs` detects a server that sends other bytes the second time. Other readers of a block that is on its way wait
//! for it, and `ahead.rs` fetches what follows a sequence, while nobody waits for other blocks. `retry.rs`
//! repeats a request until the deadline; `client.rs` sends it by the agents of `agents.rs` and follows redirects, and
//! `answer.rs` judges the answer, with the parsers of `headers.rs`; `proxy` chooses the proxy and judges its answers.
//! `url.rs` has the names of objects. [`whole`] compares all of an object with
//! the digest that is its name, and `spool.rs` has objects that come as a whole only. Between `blocks.rs` and the server is
//! the cache on disk, [`cache`].
//!
//! `access.rs` is how the client asks a store where to send a request and with which headers, and what a refusal means.
//! [`s3`] and [`azure`] sign, [`gcs`] and [`oci`] show tokens; all keep what expires in `renewed.rs`, and ask other services
//! by `small.rs`: `oauth.rs` those of Azure and Google for tokens. `object_name.rs` has the names of objects in buckets.
//! [`stores`] are their settings, read once from the user's [`environment`]. A writer by another library takes its
//! credentials from [`logins`], and sends its requests by [`transport`].

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod access;
mod agents;
mod ahead;
mod answer;
pub mod azure;
mod blocks;
pub mod cache;
mod client;
mod encoding;
pub mod environment;
mod error;
mod eviction;
mod first_hashes;
pub mod gcs;
pub mod headers;
mod link;
pub mod logins;
mod oauth;
mod object;
mod object_name;
pub mod oci;
mod outage;
mod program;
mod proxy;
mod renewed;
mod retry;
pub mod s3;
mod small;
mod source;
mod spool;
pub mod stores;
mod time;
pub mod transport;
mod url;
pub mod whole;
mod xml;

pub use error::{Change, RemoteError};
pub use source::{Options, RemoteSource, RemoteStats};
pub use spool::Spool;
pub use url::{Secret, Url, UrlError};
