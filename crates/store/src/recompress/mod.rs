//! Recompression: compressing pages in memory again, with a codec of a higher priority.
//!
//! | module | contains |
//! |---|---|
//! | `request` | which pages, with which codec: zram's words for `recompress` |
//! | `page` | the steps of one page |
//! | `pass` | a walk over the slots with several workers, and its report |
//!
//! A pass runs beside reads and writes. A slot's lock is held to copy the old bytes out and to exchange the old object
//! for the new one, and never while a codec works. A page that was written, moved to the backing, or accessed in the
//! meantime keeps its object. A page that did not become smaller is marked, and is not tried again at that priority
//! until it changes.
//!
//! The codecs are in `pages/codecs`; `engine/recompress` decides when recompression runs without a request.

mod page;
mod pass;
mod request;

pub(crate) use pass::run_pass;
pub use pass::{RecompressProgress, RecompressReport};
pub use request::{RecompressError, RecompressRequest};
