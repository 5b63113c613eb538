//! Who serves faults: the thread that made them, or threads of the region.
//!
//! Both look the page up and call the pager; they differ in how they learn of a fault and in how the thread that
//! made it goes on.

pub(crate) mod handlers;
pub(crate) mod registry;
