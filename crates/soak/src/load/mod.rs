//! What is written and read.
//!
//! | module | what |
//! |---|---|
//! | `content` | pages, made from numbers |
//! | `shadow` | what a device should hold |
//! | `mixed` | requests of all kinds from several threads, each checked against a shadow |
//! | `watch` | requests that are not answered |
//! | `fio` | fio with verification |
//! | `tree` | a file system with trees that are written, compared and deleted |

pub mod content;
pub mod fio;
pub mod mixed;
pub mod shadow;
pub mod tree;
pub mod watch;
