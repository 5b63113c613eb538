//! Writes to buckets of S3, of Azure's storage and of Google's, and lists and deletes what is there.
//!
//! It is the only crate that writes to a store of objects, by the crate `object_store`: conditional writes and uploads in
//! parts differ from cloud to cloud. Reading is the business of `pagefold-remote`, whose settings, credentials and HTTP agents
//! this uses: a bucket that can be read can be written by the same login, if the store allows it, and through the same
//! proxies and certificates.
//!
//! All functions of [`Bucket`] block. A runtime of tokio with one thread drives `object_store`; each request is sent by a
//! thread of its pool, because the agents block.
//!
//! | module | contents |
//! |---|---|
//! | `bucket` | [`Bucket`]: small objects, conditional writes, lists, deletion |
//! | `upload` | a stream of any length as an object, in parts |
//! | `connect` | the store of a name, with the login and agents of `pagefold-remote` |
//! | `error` | errors |
//!
//! Each module uses only those below it in this table.
//!
//! Not here: names of saved disks, manifests, encryption by keys of the customer, copies between buckets, and lists of uploads
//! in parts that were never completed, which `object_store` does not offer: a rule of the bucket's life cycle removes them.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bucket;
mod connect;
mod error;
mod upload;

pub use bucket::{Bucket, Condition, Listed, SmallObject, Target, Version};
pub use error::BucketError;
pub use upload::{Go, Uploaded, Verdict, verdict};
