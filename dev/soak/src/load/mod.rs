//! Loads: generators of reads and writes that check the data that they read.
//!
//! | module | contents |
//! |---|---|
//! | `content` | contents of pages, generated from numbers |
//! | `shadow` | the expected contents of a device |
//! | `mixed` | requests of all kinds from several threads, each checked against a shadow |
//! | `fio` | fio with verification |
//! | `tree` | random trees of files |
//! | `scan` | the contents of a tree, and the difference between two |
//! | `filesystem` | a file system with trees that are written, compared and deleted |
//!
//! `mixed` runs in this process on a `target`; its threads note their requests in a `watchdog` and ask a
//! [`mixed::RefusalJudge`] about refused writes. `fio` and `filesystem` are programs on a block device or an NBD export; the
//! suite judges their refusals by the server's counters.

pub mod content;
pub mod filesystem;
pub mod fio;
pub mod mixed;
pub mod scan;
pub mod shadow;
pub mod tree;
