//! Where trees come from.
//!
//! A source fills a [`Tree`](super::tree::Tree) with names and metadata, and with [`Content`](super::content::Content)
//! that is read later.
//!
//! | module | source |
//! |---|---|
//! | `directory` | a directory of a mounted file system |

pub mod directory;
