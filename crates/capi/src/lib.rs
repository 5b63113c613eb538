//! `libpagefold`: compressed memory for programs in C and C++.
//!
//! The interface is `include/pagefold.h`, which documents each function for its users; the functions here have its
//! names and prototypes, and tests compare the two. The crate translates: regions are those of `pagefold-memory`, and
//! the blocks of an arena come from jemalloc, which takes its memory from a region.
//!
//! | module | what is in it |
//! |---|---|
//! | `error` | the codes, and each thread's last message |
//! | `guard` | the border: no panic passes, each failure becomes a code |
//! | `config`, `stats` | the structs whose size the caller passes, so that they can grow |
//! | `region` | the functions on regions and pins |
//! | `budget` | the functions on limits that several regions share |
//! | `pressure` | the thread that reports memory pressure |
//! | `arena` | the functions on arenas; `arena::jemalloc` (calls of the allocator), `arena::hooks` (the memory that it takes and returns), `arena::caches` (each thread's blocks) |
//!
//! *Handles* are boxes. A call borrows its handle, so a caller must not destroy one that another thread is using; the
//! header says so. `Shared` is what the handles of a region, its pins and its arenas have in common.
//!
//! *Locks.* A region is locked shared by all calls but `pf_region_resize`. No lock of this crate is held while a page
//! of a region is touched, except by `pf_region_resize`, which no signal handler may call.
//!
//! *fork.* A child does not have the region, and other threads of the parent may have held locks. So each handle has a
//! mark by which a call in a child fails before it takes any lock.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]
// The names of the header. Its documentation is the one that users read.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod arena;
mod budget;
mod config;
mod error;
mod guard;
mod pressure;
mod region;
mod shared;
mod stats;

pub use arena::*;
pub use budget::*;
pub use config::{pf_region_config, pf_region_config_init};
pub use error::{Code, pf_error_message, pf_error_name, pf_version};
pub use pressure::pf_pressure_fn;
pub use region::*;
pub use stats::{pf_region_get_stats, pf_region_stats};

#[cfg(test)]
mod tests;
